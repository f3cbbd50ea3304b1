"""Compares our beam search with T5's weights to transformers' `generate` with the same weights, trie and beam.

    python benchmarks/t5.py [--quick] [--users 4] [--history 50] [--beam 50] [--repeat 2] [--threads 1]

A T5 of TIGER's sizes (4 + 4 layers, 128 wide, 6 heads of 64) with random weights is saved by transformers and loaded by
`generator=encoder-decoder`. Logits, then lists and scores of all users must be equal before anything is timed. Both
searches take turns in one process. Ids are made up in the shape of Beauty: 12,101 items, 3 x 256 codes and a suffix.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _made import BEAUTY_ITEMS, made_ids
from _twins import nested
from common import machine, side_by_side, write_result
from decode import TOLERANCE, Found, equality

from capsid.decode.beam import BeamSearch
from capsid.decode.model import FittedModel
from capsid.errors import ConfigError
from capsid.generate.encoder_decoder import EncoderDecoderGenerator
from capsid.ids.reading import TokenBatch
from capsid.ids.semantic_ids import SemanticIds
from capsid.ids.trie import Trie
from capsid.ragged import Ragged

OURS, THEIRS = "capsid", "transformers generate"


class Theirs:
    """`generate` with `prefix_allowed_tokens_fn` over nested dicts; ids have one length."""

    def __init__(self, vocabulary: int, rows: Ragged, generator: EncoderDecoderGenerator, *, seed: int = 0) -> None:
        try:
            from transformers import T5Config, T5ForConditionalGeneration
        except ImportError:
            raise ConfigError(
                "this comparison needs transformers", hint="pip install 'capsid-rec[text]' -c constraints.txt"
            ) from None
        torch.manual_seed(seed)
        config = T5Config(
            vocab_size=vocabulary,
            d_model=generator.width,
            d_kv=generator.head_width,
            d_ff=generator.feedforward,
            num_layers=generator.layers,
            num_decoder_layers=generator.depth_layers,
            num_heads=generator.heads,
            decoder_start_token_id=0,
        )
        self.model = T5ForConditionalGeneration(config).eval()
        self.items, self.length = nested(rows), int(rows.lengths[0])

    @torch.inference_mode()
    def logits(self, batch: TokenBatch) -> torch.Tensor:
        """Scores of the first token."""
        begin = torch.zeros(len(batch), 1, dtype=torch.long)
        return self.model(**_inputs(batch), decoder_input_ids=begin).logits[:, 0]

    def search(self, batch: TokenBatch, *, width: int, k: int) -> Found:
        """Items and scores of the k best, shape (U, k)."""

        def allowed(_: int, sequence: torch.Tensor) -> list[int]:
            return list(self._node(sequence[1:].tolist()))

        out = self.model.generate(
            **_inputs(batch),
            num_beams=width,
            num_return_sequences=k,
            max_new_tokens=self.length,
            do_sample=False,
            length_penalty=0.0,
            early_stopping=False,
            eos_token_id=None,
            prefix_allowed_tokens_fn=allowed,
            return_dict_in_generate=True,
            output_scores=True,
        )
        found = [int(self._node(row)) for row in out.sequences[:, 1:].tolist()]
        return np.array(found).reshape(-1, k), out.sequences_scores.numpy().reshape(-1, k)

    def _node(self, tokens: list[int]) -> Any:
        node: Any = self.items
        for token in tokens:
            node = node.get(token, {0: {}})
        return node


def _inputs(batch: TokenBatch) -> dict[str, torch.Tensor]:
    tokens = torch.from_numpy(batch.tokens_BL)
    return {"input_ids": tokens, "attention_mask": (tokens != 0).long()}


def loaded(theirs: Theirs, sizes: EncoderDecoderGenerator, ids: SemanticIds) -> EncoderDecoderGenerator:
    """Their weights in our generator, by way of a folder."""
    with tempfile.TemporaryDirectory() as folder:
        theirs.model.save_pretrained(folder)
        return EncoderDecoderGenerator(
            **{name: getattr(sizes, name) for name in ("layers", "depth_layers", "heads", "width", "history")},
            targets="last",
            repeats=False,
            t5=folder,
        ).build(ids, np.ones(len(ids)), seed=0)


def compare(*, items: int, users: int, history: int, beam: int, k: int, repeat: int) -> dict[str, Any]:
    """Check that both agree for all users, then time them."""
    rng = np.random.default_rng(0)
    ids = made_ids(items, (256, 256, 256), rng)
    sizes = EncoderDecoderGenerator(history=history)
    theirs = Theirs(ids.layout.vocabulary, ids.prefix_free, sizes)
    generator = loaded(theirs, sizes, ids)
    trie = Trie.build(ids.prefix_free)
    histories = Ragged.from_dense(rng.integers(0, items, size=(users, history)))
    reader, batch = FittedModel(generator, ids, (trie,), history), ids.read(histories, last=history)
    with torch.inference_mode():
        difference = float((theirs.logits(batch) - generator.scores(*generator.start(batch))[:, 0]).abs().max())
    assert difference < TOLERANCE, f"logits differ by {difference}: these are not the same weights"

    def ours() -> Found:
        found = BeamSearch(width=beam).leaves(reader, histories, k)
        return trie.items[trie.low[found.leaves_UF]], found.scores_UF

    calls = {OURS: ours, THEIRS: lambda: theirs.search(batch, width=beam, k=k)}
    agree = equality(ours(), calls[THEIRS]())
    assert agree["users_equal"] == 1.0, f"the searches find other items: {agree}"
    assert agree["largest_score_difference"] < TOLERANCE, f"the searches find other scores: {agree}"
    times = side_by_side(calls, repeat, warm=False)
    return {
        "agreement": agree,
        "largest_logit_difference": difference,
        "times_slower_than_ours": {
            "wall": times[THEIRS].seconds / times[OURS].seconds,
            "cpu": times[THEIRS].cpu_seconds / times[OURS].cpu_seconds,
        },
        "cpu_milliseconds_per_user": {name: 1e3 * t.cpu_seconds / users for name, t in times.items()},
        "times": {name: t.summary() for name, t in times.items()},
        "parameters": sum(p.numel() for p in generator.network.parameters()),
        "history_tokens": int(batch.lengths_B.mean()),
    }


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="2 users, 6 items, beam 8; writes only to --out")
    for name, default in {"users": 4, "history": 50, "beam": 50, "k": 10, "repeat": 2, "threads": 1}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--items", type=int, default=BEAUTY_ITEMS, help="size of the made catalogue")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(arguments)
    if args.quick:
        small = {"users": 2, "history": 6, "beam": 8, "k": 5, "repeat": 1, "items": 500}
        for name, most in small.items():
            setattr(args, name, min(getattr(args, name), most))
    torch.set_num_threads(args.threads)
    facts, names = machine(args.threads), ("items", "users", "history", "beam", "k", "repeat")
    result = {"machine": facts, "compare": compare(**{name: getattr(args, name) for name in names})}
    slower, agree = result["compare"]["times_slower_than_ours"], result["compare"]["agreement"]
    print(
        f"{THEIRS} takes {slower['cpu']:.1f} times our processor time ({slower['wall']:.1f} by the clock); "
        f"lists equal for {agree['users_equal']:.0%} of the users, scores to {agree['largest_score_difference']:.1e}"
    )
    if args.out or not args.quick:
        config = {name: getattr(args, name) for name in (*names, "threads", "quick")}
        write_result("t5", args.out, config, result)
    return result


if __name__ == "__main__":
    main()
