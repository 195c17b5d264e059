"""The networks of the examples: a small CNN for digits, and a GPT for characters."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class CNN(nn.Sequential):
    """Two convolutions and two linear layers: 109,024 parameters for images of 1 × 28 × 28."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(32 * 7 * 7, 66), nn.ReLU(), nn.Linear(66, 10),
        )  # fmt: skip


class Attention(nn.Module):
    """Causal self-attention with several heads."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query_key_value = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.query_key_value(x).split(width, dim=2)
        )
        y = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.output(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """Attention and a feed-forward network, each normalised first and added to its input."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(width), Attention(width, heads))
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        return x + self.feed_forward(x)


class GPT(nn.Module):
    """A decoder-only transformer over characters.

    `size` is "0.8m" (4 blocks, width 128) or "10m" (6 blocks, width 384): its number of parameters.
    """

    SIZES = {"0.8m": (4, 128, 4), "10m": (6, 384, 6)}

    def __init__(self, alphabet: int, length: int, size: str):
        super().__init__()
        depth, width, heads = self.SIZES[size]
        self.token = nn.Embedding(alphabet, width)
        self.position = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, alphabet, bias=False)
        self.head.weight = self.token.weight  # tied
        self.apply(self.initialize)

    @staticmethod
    def initialize(module: nn.Module) -> None:
        """Small normal weights and no biases, as in GPT-2."""
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, codes: Tensor) -> Tensor:
        """Logits of the next character at every place: batch × length × alphabet."""
        places = torch.arange(codes.shape[1], device=codes.device)
        return self.head(self.norm(self.blocks(self.token(codes) + self.position(places))))

    @torch.no_grad()
    def continued(self, codes: Tensor, count: int) -> Tensor:
        """`codes` (1 × length) with `count` characters more, drawn one by one."""
        for _ in range(count):
            logits = self(codes[:, -self.position.num_embeddings :])[:, -1]
            codes = torch.cat([codes, torch.multinomial(logits.softmax(dim=1), 1)], dim=1)
        return codes
