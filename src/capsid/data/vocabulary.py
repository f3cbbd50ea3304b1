"""The vocabulary moved to `capsid.vocabulary`; this name goes once the data room has moved over."""

from capsid.vocabulary import Vocabulary

__all__ = ["Vocabulary"]
