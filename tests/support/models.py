"""Small torch models of the families that layers are traced in."""

import torch
from torch import nn
from torch.nn import functional as F


class Residual(nn.Module):
    """ResNet's block: two convolutions with normalisation, beside the identity."""

    def __init__(self, width, out, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(width, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.down = None
        if stride > 1 or out != width:
            self.down = nn.Sequential(
                nn.Conv2d(width, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x):
        identity = x if self.down is None else self.down(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1), nn.BatchNorm2d(8), nn.ReLU(True))
        self.layer1 = nn.Sequential(Residual(8, 8), Residual(8, 16, 2))
        self.fc = nn.Linear(16, 5)

    def forward(self, x):
        x = self.layer1(self.stem(x))
        x = F.adaptive_avg_pool2d(x, 1)
        return self.fc(x.view(x.size(0), -1))


class Branches(nn.Module):
    """Inception's block: branches of several depths, joined by their channels."""

    def __init__(self, width):
        super().__init__()
        self.one = nn.Conv2d(width, 4, 1)
        self.three = nn.Sequential(nn.Conv2d(width, 4, 1), nn.ReLU(), nn.Conv2d(4, 6, 3, padding=1))
        self.five1 = nn.Conv2d(width, 4, 1)
        self.five2 = nn.Conv2d(4, 4, 5, padding=2)
        self.pool = nn.Conv2d(width, 2, 1)

    def forward(self, x):
        five = F.relu(self.five2(F.relu(self.five1(x))))
        pool = self.pool(F.avg_pool2d(x, 3, 1, 1))
        return torch.cat([F.relu(self.one(x)), self.three(x), five, pool], 1)


class Inception(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.bn = nn.BatchNorm2d(6)
        self.a = Branches(6)
        self.b = Branches(16)
        self.fc = nn.Linear(16, 5)
        self.rate = 0.3

    def forward(self, x):
        x = self.b(self.a(F.relu(self.bn(self.stem(x)))))
        x = F.dropout(x.mean((2, 3)), self.rate, training=self.training)
        return self.fc(x)


class Attention(nn.Module):
    def __init__(self, width, heads, rate):
        super().__init__()
        self.heads, self.rate = heads, rate
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).split(width, dim=2)
        q, k, v = (
            each.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for each in (q, k, v)
        )
        rate = self.rate if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=rate, is_causal=True)
        return self.out(y.transpose(1, 2).contiguous().view(batch, length, width))


class Block(nn.Module):
    def __init__(self, width, heads, rate):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, rate)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width), nn.Dropout(rate)
        )

    def forward(self, x):
        x = x + self.attention(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class Transformer(nn.Module):
    """A language model whose head has the weights of its embedding."""

    def __init__(self, words=11, width=8, heads=2, rate=0.1, length=6):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Embedding(length, width)
        self.drop = nn.Dropout(rate)
        self.blocks = nn.ModuleList([Block(width, heads, rate) for _ in range(2)])
        self.ln = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens):
        places = torch.arange(tokens.size(1), device=tokens.device)
        x = self.drop(self.words(tokens) + self.places(places))
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln(x))


def vgg():
    """Convolutions, then wide linear layers with dropout."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(True),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 12, 3, padding=1),
        nn.ReLU(True),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(48, 32),
        nn.ReLU(True),
        nn.Dropout(0.5),
        nn.Linear(32, 5),
    )


def images(batch=4):
    return (torch.randn(batch, 3, 8, 8),)


def tokens(batch=4):
    return (torch.randint(0, 11, (batch, 6)),)


FAMILIES = {
    "vgg": (vgg, images),
    "resnet": (ResNet, images),
    "inception": (Inception, images),
    "transformer": (Transformer, tokens),
}
