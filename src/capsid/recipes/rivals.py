"""Published methods with semantic ids and the shared generator; others build on `rq-kmeans` and `tiger`."""

from __future__ import annotations

import dataclasses

from capsid.data.fields import Field
from capsid.decode.exact import ParallelScoring
from capsid.decode.fusion import BeamFusion
from capsid.decode.mixed import Ensemble
from capsid.encode.joined import Views
from capsid.encode.kinds import default_encoder
from capsid.encode.sequence import FieldEncoder, SequenceEncoder
from capsid.encode.text import TextEncoder
from capsid.generate.dense_match import DenseMatch
from capsid.generate.generator import TimelineGenerator
from capsid.generate.joint_rivals import Alternating, GumbelCodes
from capsid.generate.next_token import NextToken
from capsid.generate.parallel import AllCodes, ParallelGenerator
from capsid.ids.collisions import Bucket, Hashed, Reassign, Suffix
from capsid.ids.reading import InContext
from capsid.recipe import Phase, Recipe
from capsid.recipes.baselines import LONG_TRAINING
from capsid.tokenize.rivals.actionpiece import Pieces
from capsid.tokenize.rivals.aligned_tree import AlignedTree
from capsid.tokenize.rivals.mixture import Mixture
from capsid.tokenize.rivals.quantisers import Chained, ProductQuantizer, ResidualKMeans
from capsid.tokenize.rivals.rqvae import RQVAE
from capsid.tokenize.rivals.rqvae_network import Sinkhorn
from capsid.tokenize.rivals.rqvae_terms import CodeDiversity, CollaborativeMatch, rqvae_training
from capsid.train.options import Training

RQ_KMEANS = Recipe(
    name="rq-kmeans",
    about="Residual k-means, 3 codes and a suffix; Transformer over items and depths; beam search in the trie",
    paper="TIGER (Rajput et al. 2023, arXiv 2305.05065) with residual k-means instead of the RQ-VAE",
    deviations=(
        "item vectors join text with collaborative vectors",
        "the generator reads one position per item, scores tokens by cosine, and has no user token",
        "it learns how likely users are to return to an item (generator.repeats=false: off)",
    ),
    encoder=default_encoder(),
    tokenizer=ResidualKMeans(),
    collisions=Suffix(),
    generator=TimelineGenerator(),
    objective=(NextToken(),),
    schedule=(Phase(),),
)


TIGER = Recipe(
    name="tiger",
    about="RQ-VAE, 3 codes and a suffix; Transformer over items and depths; beam search in the trie",
    paper="TIGER (Rajput et al. 2023, arXiv 2305.05065)",
    deviations=(
        "item vectors join text with collaborative vectors (tiger-text: text only)",
        "text vectors are MiniLM's, not Sentence-T5's",
        "AdamW for 4,500 steps instead of Adagrad for 20,000 epochs; unused codes are revived",
        "the generator reads one position per item, scores by cosine, is not T5, and has no user token",
        "it learns how likely users are to return to an item (generator.repeats=false: off)",
        "beam search follows the trie, so it never generates an invalid id",
    ),
    encoder=default_encoder(),
    tokenizer=RQVAE(),
    collisions=Suffix(),
    generator=TimelineGenerator(),
    objective=(NextToken(),),
    schedule=(Phase(),),
)


TIGER_TEXT = dataclasses.replace(
    TIGER,
    name="tiger-text",
    about="Like tiger, but with text vectors only, unlike the other rows (marked in tables of shared input)",
    deviations=TIGER.deviations[1:],
    encoder=TextEncoder(),
)


TIGER_DENSE = dataclasses.replace(
    TIGER,
    name="tiger-dense",
    about="Like tiger, with dense item vectors read with the ids and predicted after them; beams and vectors fused",
    paper="TIGER (Rajput et al. 2023, arXiv 2305.05065) with the dense path of COBRA (arXiv 2503.02453)",
    deviations=(
        *TIGER.deviations,
        "no suffix: colliding items share a bucket, ranked by their vectors",
        "an item's vector is added to its position in the timeline",
        "vectors compare items of the same id, not all items that were found (decoder.among=found: as published)",
    ),
    collisions=Bucket(),
    objective=(NextToken(), DenseMatch()),
    # COBRA has 16 for its industrial data; validation prefers 32 where many items share an id.
    decoder=BeamFusion(among="id", dense_temperature=32.0),
)


LC_REC = dataclasses.replace(
    TIGER,
    name="lc-rec",
    about="RQ-VAE, 4 codes, the last balanced by Sinkhorn and reassigned where items collide; no suffix",
    paper="LC-Rec (Zheng et al. 2023, arXiv 2311.09049), only the ids",
    deviations=(
        "the shared generator instead of LLaMA, without the tasks that align language and ids",
        "item vectors join text with collaborative vectors; text vectors are MiniLM's, not LLaMA's",
        "encoder and decoder have TIGER's three layers, not six; 4,500 steps at 2e-3 instead of 10,000 epochs at 1e-3",
        "losses of the depths are summed and reach the encoder from every depth; the released code averages them",
        "unused codes are revived",
        *TIGER.deviations[3:],
    ),
    tokenizer=RQVAE(
        codebooks=(256, 256, 256, 256),
        assign=Sinkhorn(),
        training=dataclasses.replace(rqvae_training(), batch_size=1024),
    ),
    collisions=Reassign(how="sinkhorn"),
)


LETTER = dataclasses.replace(
    LC_REC,
    name="letter",
    about="Like lc-rec, with codes that match SASRec's item vectors and codebooks that are kept diverse",
    paper="LETTER (Wang et al. 2024, arXiv 2405.07314), in the released settings for Beauty",
    deviations=(
        "behaviour vectors come from our SASRec with full cross-entropy; items without behaviour are not matched",
        "the joined item vectors already contain collaborative ones (encoder.item=text: text only, as published)",
        "groups of codes come from a greedy bounded k-means, not from an exact one",
        "temperature 1 in the generator's loss, as released for Beauty, not the 0.7 of the paper",
        "the shared generator instead of T5",
        *LC_REC.deviations[2:],
    ),
    encoder=Views(item=default_encoder(), others=(("behaviour", SequenceEncoder(dim=32)),)),
    tokenizer=dataclasses.replace(
        LC_REC.tokenizer,  # type: ignore[type-var]
        terms=(CollaborativeMatch(weight=0.1), CodeDiversity(weight=1e-4)),
        start="bounded",
    ),
)


ETEGREC = dataclasses.replace(
    TIGER,
    name="etegrec",
    about="RQ-VAE on SASRec's item vectors; tokenizer and generator learn in turns, aligned with each other",
    paper="ETEGRec (Liu et al. 2025, arXiv 2409.05546), with the published weights of both alignments",
    deviations=(
        *TIGER.deviations[2:],
        "item vectors come from our SASRec with full cross-entropy, 64 wide instead of 256",
        "items without training sequences, also new ones, get the mean of all vectors and differ in their suffixes",
        "six turns of the tokenizer within 70 % of the steps, not every other epoch until validation stops improving",
        "the tokenizer stays as it is while alignment is off, in the first fifth of the steps",
        "codes are aligned by the softmax of minus distances as in the paper; the released code has the other sign",
        "the state of a history is the timeline's last row, not a mean over positions",
        "at every depth the commitment loss reaches the encoder; losses of depths are added, not averaged",
    ),
    encoder=SequenceEncoder(dim=64, unseen="mean"),
    tokenizer=RQVAE(hidden=(512, 256), latent=128),
    # Capacity for collisions of later ids, and for items without training sequences, which all have the same vector.
    collisions=Suffix(capacity=256),
    schedule=(Phase(adapt=Alternating()),),
)


ADA_SID = dataclasses.replace(
    RQ_KMEANS,
    name="ada-sid",
    about="7 parallel codebooks: 2 of text and behaviour, 2 of text, up to 3 of behaviour, fewer for rare items",
    paper="ADA-SID (Xu et al. 2025, arXiv 2510.25622)",
    deviations=(
        "two views, text and the item vectors of our SASRec; there are no images",
        "numbers of experts, widths and weights of the losses are ours; those published do not add up",
        "how much behaviour an item has is the log of its training count; norms of our SASRec's vectors fall with it",
        "the router reads that number and the vector's direction; closed experts get a tenth of the gradient",
        "sparsity works in both directions, and its weight is adapted for eight groups of items by their behaviour",
        "codes stand in the order shared, text, behaviour, and closed experts give no token",
        "codebooks start from k-means, and unused codes are revived",
        "the shared generator",
        *RQ_KMEANS.deviations[1:],
    ),
    encoder=Views(item=TextEncoder(), others=(("behaviour", SequenceEncoder(dim=32)),)),
    tokenizer=Mixture(),
    collisions=Bucket(),
)


ACTIONPIECE = dataclasses.replace(
    TIGER,
    name="actionpiece",
    about="Product codes and a hash as sets, merged inside and across items; one history is read in five ways",
    paper="ActionPiece (Hou et al. 2025, arXiv 2502.13581)",
    deviations=(
        "8,192 tokens instead of 40,000: a cheaper vocabulary; 256 hashes on all data (64 on Beauty in the paper)",
        "weights of pairs are exact; in the released code, pairs that vanish keep their weight",
        "the token of a merge across items may stand next to another such token, where all codes between are merged",
        "a training step predicts one random item of each sequence: 0.8 million targets instead of 1.9 million",
        "probabilities are normalised over the tokens that can follow in the trie",
        "validation during training searches one reading instead of five",
        "a merged token's vector is the sum of its codes' vectors and its own",
        *TIGER.deviations[:2],
        "the generator scores by cosine, is not T5, and has no user token",
        *TIGER.deviations[4:],
    ),
    tokenizer=ProductQuantizer(),
    collisions=Hashed(),
    merges=Pieces(),
    reading=InContext(),
    generator=TimelineGenerator(reads="distances"),
    over="children",
    decoder=Ensemble(),
    schedule=(Phase(training=Training(steps=3_200, batch_size=256, validate_every=640)),),
)


DIGER = dataclasses.replace(
    TIGER,
    name="diger",
    about="Like tiger, with balanced codes; codebooks and generator learn jointly by Gumbel-softmax, ids are refreshed",
    paper="DIGER (Fu et al. 2026, arXiv 2601.19711), with noise by use of codes and the authors' later gradient paths",
    deviations=(
        *TIGER.deviations,
        "codebooks learn in the first two thirds of the steps, and ids are refreshed 8 times instead of every epoch",
        "the scale of the noise is fixed, not learnt",
    ),
    tokenizer=RQVAE(assign=Sinkhorn(depths=3, catalogue=True)),
    # Capacity for collisions of later ids: the vocabulary must not change with them.
    collisions=Suffix(capacity=64),
    schedule=(Phase(adapt=GumbelCodes()),),
)


SA2CRQ = dataclasses.replace(
    TIGER,
    name="sa2crq",
    about="RQ-VAE of popular items, then of the others with new codes; up to 4 codes, fewer where a prefix is rare",
    paper="SA2CRQ (Wang et al. 2026, arXiv 2602.23978), made for search; only the ids",
    deviations=(
        "popular items are the fewest with 80 % of the training interactions; the paper does not say which they are",
        "an id ends where at most 2 popular items share its prefix; the paper gives a share of its own catalogue",
        "a quarter as many new codes as old ones; the paper does not give their number",
        "lengths are computed once per epoch, and once more when training ends",
        *TIGER.deviations,
    ),
    tokenizer=RQVAE(codebooks=(64, 128, 256, 256), head=0.8, extra=0.25, crowd=2),
    collisions=Bucket(),
)


RESID = dataclasses.replace(
    RQ_KMEANS,
    name="resid",
    about="Item vectors from masked fields (id, brand, categories); a balanced tree of clusters, unique ids of 3 codes",
    paper="ReSID (Liang et al. 2026, arXiv 2602.02338)",
    deviations=(
        "field embeddings are 64 wide instead of 128; 3,000 steps of 256 histories, without early stopping",
        "values of fewer than 5 items count as unknown; all fields have the same weight in the loss",
        "an item in no training history has its fields but no id embedding; the paper adds such items to training",
        "clusters are balanced greedily, and 24 x 40 of them suit some 12,000 items (tokenizer.branching)",
        "the shared generator instead of T5",
        *RQ_KMEANS.deviations[1:],
    ),
    encoder=FieldEncoder(),
    tokenizer=AlignedTree(branching=(24, 40)),
    collisions=Bucket(),
)


COBRA = dataclasses.replace(
    TIGER_DENSE,
    name="cobra",
    about="RQ-VAE, ids of 3 codes, shared by many items; vectors read with them and predicted after them; both fused",
    paper="COBRA (Yang et al. 2025, arXiv 2503.02453)",
    deviations=(
        "a small network makes item vectors from the vectors that all recipes share, not a text encoder",
        "a vector is added to its item's position instead of having its own position",
        "negatives are the other items of the batch, without those that the user takes later",
        "vectors compare items of the same id, not all items that were found (decoder.among=found: as published)",
        "cosines are multiplied by 32, chosen by validation; published temperatures (16) are for industrial data",
        *TIGER_DENSE.deviations[2:6],
    ),
    tokenizer=RQVAE(codebooks=(32,) * 3),
)


RPG = Recipe(
    name="rpg",
    about="Product codes predicted in parallel, one head for each; all items scored by the sum of their codes",
    paper="RPG (Hou et al. 2025, arXiv 2506.05781)",
    deviations=(
        "item vectors join text with collaborative vectors, and text vectors are MiniLM's",
        "all items are scored; the paper decodes over a graph of similar items to score fewer",
        "the history is read by distance alone instead of GPT-2",
    ),
    encoder=default_encoder(),
    tokenizer=ProductQuantizer(codebooks=(256,) * 16),
    collisions=Bucket(),
    generator=ParallelGenerator(dropout=0.4, embedding_dropout=0.4, hidden_dropout=0.4),
    objective=(AllCodes(),),
    decoder=ParallelScoring(),
    schedule=(Phase(training=dataclasses.replace(LONG_TRAINING, steps=5_280, equal_targets=True)),),
)


UNIREC_COA = dataclasses.replace(
    RQ_KMEANS,
    name="unirec-coa",
    about="Two category levels, then residual k-means with bounded loads, 3 codes, and a suffix",
    paper="UniRec (Wang et al. 2026, arXiv 2604.12234), only the chain of attributes",
    deviations=(
        "256 codes at each depth instead of 4,000, and a suffix for colliding items",
        "the load of an item is its training count plus 1, because there are no exposure counts",
        "the shared generator: no cross-attention with gates, no content summary, no reward tuning",
        "category values of fewer than 5 items count as unknown",
        *RQ_KMEANS.deviations,
    ),
    tokenizer=Chained(
        fields=(Field(column="categories", level=1), Field(column="categories", level=2)),
        inner=ResidualKMeans(capacity=1.05),
    ),
)
