"""Data sets of the examples: real files where there are some, and small ones made here otherwise."""

import gzip
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset, TensorDataset

# Digits in a font of 5 × 7 pixels, one row of bits per number.
FONT = [
    [14, 17, 19, 21, 25, 17, 14], [4, 12, 4, 4, 4, 4, 14], [14, 17, 1, 2, 4, 8, 31],
    [31, 2, 4, 2, 1, 17, 14], [2, 6, 10, 18, 31, 2, 2], [31, 16, 30, 1, 1, 17, 14],
    [6, 8, 16, 30, 17, 17, 14], [31, 1, 2, 4, 8, 8, 8], [14, 17, 17, 14, 17, 17, 14],
    [14, 17, 17, 15, 1, 2, 12],
]


def digits(folder: str | None, train: bool) -> TensorDataset:
    """Images of digits, 1 × 28 × 28 in [0, 1], and their labels.

    They come from the IDX files of MNIST in `folder`, plain or gzip. Without a folder they are drawn:
    digits of a pixel font at random places and brightnesses, in noise.
    """
    if folder is None:
        images, labels = drawn_digits(8192 if train else 1024, seed=int(train))
    else:
        part = "train" if train else "t10k"
        images = idx(Path(folder) / f"{part}-images-idx3-ubyte").astype(np.float32) / 255
        labels = idx(Path(folder) / f"{part}-labels-idx1-ubyte")
    return TensorDataset(torch.from_numpy(images)[:, None], torch.from_numpy(labels.astype(np.int64)))


def idx(path: Path) -> np.ndarray:
    """The array in an IDX file, which may have been compressed to `path`.gz."""
    content = path.read_bytes() if path.exists() else gzip.decompress(Path(f"{path}.gz").read_bytes())
    dimensions = content[3]
    shape = np.frombuffer(content, ">i4", dimensions, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def drawn_digits(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images of 28 × 28 pixels and labels, the same ones for a seed."""
    random = np.random.default_rng(seed)
    glyphs = np.array([[[row >> bit & 1 for bit in (4, 3, 2, 1, 0)] for row in rows] for rows in FONT])
    glyphs = glyphs.repeat(3, axis=1).repeat(3, axis=2)  # 21 × 15 pixels
    labels = random.integers(10, size=count)
    images = random.normal(0.0, 0.35, size=(count, 28, 28)).astype(np.float32)
    for image, label in zip(images, labels):
        top, left = random.integers(28 - 21 + 1), random.integers(28 - 15 + 1)
        image[top : top + 21, left : left + 15] += random.uniform(0.4, 1.0) * glyphs[label]
    return images.clip(0, 1), labels


class Characters(Dataset):
    """A text as windows of `length` characters, each with the same window one character later."""

    def __init__(self, text: str, alphabet: str, length: int):
        code = {character: at for at, character in enumerate(alphabet)}
        self.codes = torch.tensor([code[character] for character in text])
        self.length = length

    def __len__(self) -> int:
        return (len(self.codes) - 1) // self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        window = self.codes[index * self.length : (index + 1) * self.length + 1]
        return window[:-1], window[1:]


def characters(file: str | None, length: int) -> tuple[Characters, Characters, str]:
    """Windows to train on, windows to evaluate on (the last tenth), and the alphabet.

    The text is that of `file`. Without a file it is this project's own documentation.
    """
    if file is None:
        root = Path(__file__).parents[2]
        texts = [path.read_text() for path in sorted([*root.glob("*.md"), *root.glob("docs/**/*.md")])]
        text = "\n".join(texts).encode("ascii", "ignore").decode()
    else:
        text = Path(file).read_text()
    alphabet = "".join(sorted(set(text)))
    split = len(text) * 9 // 10
    return (
        Characters(text[:split], alphabet, length),
        Characters(text[split:], alphabet, length),
        alphabet,
    )
