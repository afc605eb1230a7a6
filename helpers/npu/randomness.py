"""Random numbers of the emulated cards. Each card has its own generator, as on the hardware."""

import torch

from .cards import card_of

_c = torch.ops.helpers_npu


class _Generators:
    """torch.npu.default_generators: each card's torch.Generator state, by number."""

    def __len__(self):
        return _c.device_count()

    def __getitem__(self, card):
        generator = torch.Generator(f"npu:{range(len(self))[card]}")
        generator.set_state(_c.get_rng_state(range(len(self))[card]))
        return generator


default_generators = _Generators()


def manual_seed(seed) -> None:
    """Seed the current card."""
    _c.manual_seed(_c.current_device(), int(seed) % 2**63)


def manual_seed_all(seed) -> None:
    """Seed every card; torch.manual_seed does it as well."""
    for card in range(_c.device_count()):
        _c.manual_seed(card, int(seed) % 2**63)


def seed() -> None:
    """Seed the current card at random."""
    manual_seed(torch.Generator().seed())


def seed_all() -> None:
    """Seed every card at random, all alike."""
    manual_seed_all(torch.Generator().seed())


def initial_seed() -> int:
    """What the current card was seeded with."""
    return _c.initial_seed(_c.current_device())


def get_rng_state(device="npu"):
    """State of a card's generator, a uint8 tensor on the CPU."""
    return _c.get_rng_state(card_of(device))


def set_rng_state(state, device="npu") -> None:
    """Put a card's generator into a state that `get_rng_state` gave."""
    _c.set_rng_state(card_of(device), state)


def get_rng_state_all() -> list:
    """The states of all cards."""
    return [_c.get_rng_state(card) for card in range(_c.device_count())]


def set_rng_state_all(states) -> None:
    """Put all cards' generators into these states."""
    for card, state in enumerate(states):
        _c.set_rng_state(card, state)
