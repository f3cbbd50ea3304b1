"""The same search with one thing changed: the alternatives in `decode.py`.

`Transformers` gives our weights to a GPT-2 of the transformers library and lets its `generate` search; `OwnCopies` is
our loop with a copy of the history's keys and values for every beam; `DictTrie` is a trie of dicts with our trie's
interface.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from capsid.base.blocks.layers import Block
from capsid.errors import ConfigError
from capsid.generate.network import CausalTransformer
from capsid.ids.reading import TokenBatch
from capsid.ids.trie import Children, Trie
from capsid.ragged import Ragged

Nested = dict[int, Any]


def nested(rows: Ragged) -> Nested:
    """Token to child, the last token to the row's number."""
    root: Nested = {}
    for row, tokens in enumerate(rows):
        node = root
        for token in tokens[:-1].tolist():
            node = node.setdefault(token, {})
        node[int(tokens[-1])] = row
    return root


class Transformers:
    """`generate` with `prefix_allowed_tokens_fn` over nested dicts, and exactly our network as a GPT-2.

    With T tokens per item, position p is token p % T of item p // T, so the sum of our two embeddings is its position
    embedding. Beams and scores follow our protocol: no length penalty, softmax over all tokens, masked after it.
    """

    def __init__(self, network: CausalTransformer, rows: Ragged) -> None:
        self.length = int(rows.lengths[0])
        if int(rows.lengths.min()) != int(rows.lengths.max()):
            raise ConfigError("the transformers twin needs ids of one length", hint="use a run with suffix tokens")
        self.model = _gpt2(network, self.length)
        self.items = nested(rows)

    @torch.inference_mode()
    def logits(self, batch: TokenBatch) -> Tensor:
        """Scores of what follows each history, to be compared with ours before anything is timed."""
        tokens, mask = left_padded(batch)
        positions = (mask.cumsum(1) - 1).clamp_min(0)
        return self.model(input_ids=tokens, attention_mask=mask, position_ids=positions).logits[:, -1]

    def search(self, batch: TokenBatch, *, width: int, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Items and scores of the k best, shape (U, k)."""
        tokens, mask = left_padded(batch)
        prompt = tokens.shape[1]

        def allowed(_: int, sequence: Tensor) -> list[int]:
            node = self.items
            for token in sequence[prompt:].tolist():
                node = node.get(token, {})
            return list(node)

        out = self.model.generate(
            tokens,
            attention_mask=mask,
            num_beams=width,
            num_return_sequences=k,
            max_new_tokens=self.length,
            min_new_tokens=self.length,
            do_sample=False,
            length_penalty=0.0,
            early_stopping=False,
            prefix_allowed_tokens_fn=allowed,
            return_dict_in_generate=True,
            output_scores=True,
        )
        found = [self._item(row) for row in out.sequences[:, prompt:].tolist()]
        return np.array(found).reshape(-1, k), out.sequences_scores.numpy().reshape(-1, k)

    def _item(self, tokens: list[int]) -> int:
        node: Any = self.items
        for token in tokens:
            node = node[token]
        return int(node)


def left_padded(batch: TokenBatch) -> tuple[Tensor, Tensor]:
    """Tokens moved to the right end of their rows, and the mask: how `generate` wants them."""
    width = batch.tokens_BL.shape[1]
    source = np.arange(width)[None, :] - (width - batch.lengths_B[:, None])
    mask = source >= 0
    tokens = np.where(mask, np.take_along_axis(batch.tokens_BL, np.maximum(source, 0), axis=1), 0)
    return torch.from_numpy(tokens), torch.from_numpy(mask.astype(np.int64))


def _gpt2(network: CausalTransformer, length: int) -> Any:
    try:
        from transformers import GPT2Config, GPT2LMHeadModel
    except ImportError:
        raise ConfigError(
            "this comparison needs transformers", hint="pip install 'capsid-rec[text]' -c constraints.txt"
        ) from None
    shape = network.shape
    places = network.space.positions + 1
    config = GPT2Config(
        vocab_size=network.space.vocabulary,
        n_positions=places * length,
        n_embd=shape.width,
        n_layer=shape.layers,
        n_head=shape.heads,
        n_inner=shape.feedforward,
        activation_function="gelu",
        layer_norm_epsilon=network.norm.eps,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = GPT2LMHeadModel(config).eval()
    position = network.place.weight[:places, None] + network.depth.weight[None, :length]
    state: dict[str, Any] = {"wte.weight": network.token.weight, "wpe.weight": position.flatten(0, 1)}
    state |= {f"ln_f.{kind}": getattr(network.norm, kind) for kind in ("weight", "bias")}
    names = {"norm_attention": "ln_1", "qkv": "attn.c_attn", "out": "attn.c_proj"}
    names |= {"norm_feedforward": "ln_2", "up": "mlp.c_fc", "down": "mlp.c_proj"}
    for number, block in enumerate(network.blocks):
        for ours, theirs in names.items():
            part = block.get_submodule(ours)
            # Their linear maps keep the transposed matrix.
            weight = part.weight if ours.startswith("norm") else part.weight.T
            state |= {f"h.{number}.{theirs}.weight": weight, f"h.{number}.{theirs}.bias": part.bias}
    with torch.no_grad():
        model.transformer.load_state_dict({name: t.detach().clone() for name, t in state.items()})
    return model


@dataclass(frozen=True)
class _Copies:
    """Keys and values of every layer, one set a beam: (rows, heads, length, head width). `mask_NL`: what is real."""

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    mask_NL: Tensor
    positions_U: Tensor
    depth: int
    beams: int


class OwnCopies:
    """Our network without shared keys and values: each beam carries its history along, reordered at every step."""

    def __init__(self, network: CausalTransformer) -> None:
        self.network = network

    def start(self, histories: TokenBatch, inputs_RD: Any = None) -> tuple[_Copies, Tensor]:
        state, rows = self.network.start(histories)
        keys = tuple(c.keys_UHLK for c in state.caches)
        values = tuple(c.values_UHLK for c in state.caches)
        return _Copies(keys, values, ~state.padding_UL, state.positions_U, 0, 1), rows

    def step(self, state: _Copies, parents_UW: Tensor, tokens_UW: Tensor) -> tuple[_Copies, Tensor]:
        users, beams = tokens_UW.shape
        rows = (torch.arange(users)[:, None] * state.beams + parents_UW).flatten()
        mask = torch.cat([state.mask_NL[rows], torch.ones(len(rows), 1, dtype=torch.bool)], dim=1)
        net, tokens = self.network, tokens_UW.reshape(-1, 1)
        positions = state.positions_U.repeat_interleave(beams)[:, None]
        x = net.token(tokens) + net.place(positions) + net.depth(torch.full_like(tokens, state.depth))
        keys, values = [], []
        for block, k, v in zip(net.blocks, state.keys, state.values):
            assert isinstance(block, Block)
            q, new_k, new_v = block.qkv(block.norm_attention(x)).view(len(rows), 1, 3, block.heads, -1).unbind(2)
            keys.append(torch.cat([k[rows], new_k.transpose(1, 2)], dim=2))
            values.append(torch.cat([v[rows], new_v.transpose(1, 2)], dim=2))
            mixed = F.scaled_dot_product_attention(
                q.transpose(1, 2), keys[-1], values[-1], attn_mask=mask[:, None, None, :]
            )
            x = x + block.out(mixed.transpose(1, 2).flatten(2))
            x = x + block.down(F.gelu(block.up(block.norm_feedforward(x))))
        rows_UWD = x.view(users, beams, -1)
        return _Copies(tuple(keys), tuple(values), mask, state.positions_U, state.depth + 1, beams), rows_UWD

    def scores(self, state: _Copies, rows_UWD: Tensor, row_R: Tensor | None = None) -> Tensor:
        rows = rows_UWD if row_R is None else rows_UWD.flatten(0, 1)[row_R]
        return F.linear(self.network.score_rows(rows), self.network.token.vectors().score_VS)


class DictTrie:
    """Our trie's answers out of dicts: every inner node is a dict from token to child, asked node by node in Python."""

    def __init__(self, trie: Trie) -> None:
        self.low, self.high, self.items = trie.low, trie.high, trie.items
        edges = trie.children(np.arange(trie.nodes))
        self._below: dict[int, dict[int, int]] = {}
        for parent, token, node in zip(edges.parent.tolist(), edges.token.tolist(), edges.node.tolist()):
            self._below.setdefault(parent, {})[token] = node

    def __len__(self) -> int:
        return len(self.items)

    def is_leaf(self, nodes: np.ndarray) -> np.ndarray:
        return np.array([n not in self._below for n in nodes.tolist()], dtype=bool)

    def children(self, nodes: np.ndarray) -> Children:
        parent: list[int] = []
        token: list[int] = []
        node: list[int] = []
        for row, number in enumerate(nodes.tolist()):
            below = self._below[number]
            parent += [row] * len(below)
            token += below.keys()
            node += below.values()
        return Children(*(np.array(column, dtype=np.int64) for column in (parent, token, node)))
