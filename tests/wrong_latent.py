"""Layers with multi-head latent attention that must be refused: each has one plausible mistake."""

from dataclasses import replace

import torch

from impls.absorbed import Absorbed
from impls.formula import attention
from impls.latent import LatentLayer
from impls.layer import KernelCore

LATENT = {"latent": 24, "rope": 8, "d_model": 40}
TOKEN = {"mode": "decode", "mask": "none", "T": 1, "T_kv": 48}

LAYERS = {}


def wrong(**case):
    def keep(layer):
        LAYERS[layer.__name__] = layer, LATENT | case
        return layer

    return keep


class Naive(LatentLayer):
    def __init__(self, shape):
        super().__init__(shape, KernelCore(shape, attention, takes_mask=True))


@wrong()
class KeysAreNotTurned(Naive):
    def rotated(self, x, first):
        return x if x.shape[-3] == 1 else super().rotated(x, first)


@wrong(**TOKEN)
class PlacesBeginWithTheNewToken(Naive):
    def rotated(self, x, first):
        return super().rotated(x, 0)


@wrong(mode="decode", mask="causal_br", T=24, T_kv=60)
class ChunkHasOnePlace(Naive):
    def rotated(self, x, first):
        return torch.cat([super(ChunkHasOnePlace, self).rotated(row, first) for row in x.split(1, -2)], -2)


@wrong()
class HalvesInsteadOfPairs(Naive):
    """As in GPT-NeoX: the same scores for other weights."""

    def rotated(self, x, first):
        cos, sin = (it[first : first + x.shape[-2]] for it in (self.cos, self.sin))
        a, b = x[..., -self.rope :].chunk(2, -1)
        return torch.cat([x[..., : -self.rope], a * cos - b * sin, a * sin + b * cos], -1)


@wrong(dtype="bfloat16", T=512, H=1)
class PlacesInTheCasesDtype(Naive):
    def rotated(self, x, first):
        places = torch.arange(first, first + x.shape[-2]).to(x.dtype)[:, None]
        angles = places * (10000 ** (-torch.arange(0, self.rope, 2) / self.rope)).to(x.dtype)
        a, b = x[..., -self.rope :].unflatten(-1, (-1, 2)).unbind(-1)
        turned = [a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()]
        return torch.cat([x[..., : -self.rope], torch.stack(turned, -1).flatten(-2)], -1)


@wrong(**TOKEN)
class TurnsTheCacheAgain(Naive):
    def attend(self, q, latents, padding):
        return super().attend(q, self.rotated(latents, 0), padding)


@wrong()
class RotaryKeyOfTheFirstHead(Naive):
    def attend(self, q, latents, padding):
        q = q.clone()
        q[:, 1:, :, -self.rope :] = 0
        return super().attend(q, latents, padding)


class Scaled(Absorbed):
    width = 0

    def core_of(self, inside):
        return super().core_of(replace(inside, scale=self.width**-0.5))


@wrong(**TOKEN)
class ScaledByTheWidthOfALatent(Scaled):
    width = 32


@wrong()
class ScaledWithoutTheRotaryPart(Scaled):
    width = 8


class ByWeights(Absorbed):
    def weights(self):
        """Of keys and of values: (H, width, latent) each."""
        return [W.weight.unflatten(0, (self.shape.H, -1)) for W in (self.W_k, self.W_v)]

    def attend(self, q, latents, padding):
        own, shared = q.split([self.shape.D_h - self.rope, self.rope], -1)
        W_k, W_v = self.weights()
        return self.over(torch.cat([own @ W_k, shared], -1), latents, padding) @ W_v.mT


@wrong(**TOKEN)
class AbsorbsTheWeightsOfOtherHeads(ByWeights):
    def weights(self):
        W_k, W_v = super().weights()
        return [W_k.flip(0), W_v]


@wrong()
class ValuesOfOneHeadForAll(ByWeights):
    def weights(self):
        W_k, W_v = super().weights()
        return [W_k, W_v[:1]]


@wrong(**TOKEN)
class WritesNoRotaryKey(Naive):
    """The new token sees its own; those after it will not."""

    def forward(self, x, **others):
        o = super().forward(x, **others)
        others["cache"][0][..., -1:, -self.rope :] = 0
        return o


@wrong(**TOKEN, page=7, B=2)
class LatentsOfTheFirstRequest(Naive):
    def in_one_piece(self, pools, pages):
        return super().in_one_piece(pools, pages[:1].expand_as(pages))


@wrong(**TOKEN, page=7, B=2)
class PlaceWithinAPage(Naive):
    def rotated(self, x, first):
        return super().rotated(x, first % self.shape.page)


@wrong(mode="backward")
class AbsorbsTheWeightsOfItsFirstCall(ByWeights):
    kept = None

    def weights(self):
        self.kept = self.kept or [W.clone() for W in super().weights()]
        return self.kept


@wrong(mode="backward")
class LatentThatDoesNotLearn(Naive):
    def attend(self, q, latents, padding):
        c, shared = latents.split([self.latent, self.rope], -1)
        return super().attend(q, torch.cat([c.detach(), shared], -1), padding)
