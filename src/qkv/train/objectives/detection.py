"""Objects as a set: each is matched with one query, and the query learns its class and its box. [carion2020 §3.1]

Shapes: l layers of the decoder, b pictures, n queries, t objects of the fullest picture, c classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.data.box_rows import AnyBoxBatch
from qkv.errors import QkvError
from qkv.parts.boxes import corners, generalised_overlap
from qkv.parts.detection_heads import Detections
from qkv.parts.precision import widened
from qkv.train.assignment import assign_many
from qkv.train.objectives.loss import Loss

FAR = 1e6  # the cost of a pair that has none, such as of a box that is no number: taken only where nothing else is left


@dataclass(frozen=True)
class Matched:
    """Which query has which object, over all layers and pictures: four lists of the same length."""

    layers: Tensor
    pictures: Tensor
    queries: Tensor
    objects: Tensor


@dataclass(frozen=True, kw_only=True)
class SetPredictionLoss:
    """Cross-entropy of classes and distance of boxes, under the cheapest matching of queries and objects.

    All layers of the decoder learn, each with a matching of its own [carion2020 §3.2].
    """

    counts: ClassVar[str] = "objects"
    decides_on_host: ClassVar[bool] = True

    class_cost: float = 1.0
    distance_cost: float = 5.0  # of the four numbers of a box
    overlap_cost: float = 2.0
    class_weight: float = 1.0
    distance_weight: float = 5.0
    overlap_weight: float = 2.0
    no_object_weight: float = 0.1  # of queries without an object, which are most of them [carion2020 §3.1]
    every_layer: bool = True

    def __post_init__(self) -> None:
        if self.class_cost == self.distance_cost == self.overlap_cost == 0:
            raise QkvError("A matching needs at least one cost above 0: of classes, distances or overlaps.")

    def __call__(self, model: Any, batch: AnyBoxBatch) -> Loss:
        return self.measure(model, batch)["loss"]

    def measure(self, model: Any, batch: AnyBoxBatch) -> dict[str, Loss]:
        """The loss over all layers; and of the last one its parts, and the share of objects whose class is right."""
        if self.every_layer:
            layers = model.every_layer(batch.pixels, pixel_mask=batch.real)
        else:
            layers = [model(batch.pixels, pixel_mask=batch.real)]
        return self.of_layers(layers, batch.labels, batch.boxes, batch.objects)

    def of_layers(self, layers: list[Detections], labels: Tensor, boxes: Tensor, objects: int) -> dict[str, Loss]:
        """The same for what the layers said; labels [b t], −1 for no object, and boxes [b t 4] are what is there."""
        logits = widened(torch.stack([each.logits for each in layers]))  # [l b n c+1]
        found = widened(torch.stack([each.boxes for each in layers]))  # [l b n 4]
        matched = self.match(logits, found, labels, boxes)
        at = (matched.layers, matched.pictures, matched.queries)
        wanted, wanted_boxes = labels[matched.pictures, matched.objects], boxes[matched.pictures, matched.objects]
        classes = torch.full(logits.shape[:3], logits.shape[3] - 1, device=logits.device)  # [l b n], all "no object"
        classes[at] = wanted
        count = max(1, objects)
        by_class = self._class_loss(logits, classes)  # [l]
        distance = self._summed((found[at] - wanted_boxes).abs().sum(-1), matched, len(layers)) / count  # [l]
        apart = 1 - generalised_overlap(corners(found[at]), corners(wanted_boxes))
        apart = self._summed(apart, matched, len(layers)) / count  # [l]
        total = self.class_weight * by_class + self.distance_weight * distance + self.overlap_weight * apart
        last = matched.layers == len(layers) - 1
        right = (logits[at].argmax(-1) == wanted)[last].sum()
        return {
            "loss": Loss(total.sum() * count, count),
            "class loss": Loss(by_class[-1] * count, count),
            "distance": Loss(distance[-1] * count, count),
            "apart": Loss(apart[-1] * count, count),
            "right classes": Loss(right, count),
        }

    @torch.no_grad()
    def match(self, logits: Tensor, found: Tensor, labels: Tensor, boxes: Tensor) -> Matched:
        """The cheapest pairs of every layer and picture. logits [l b n c+1], found [l b n 4] [carion2020 eq.1]"""
        layers, pictures = logits.shape[:2]
        named = labels.clamp(min=0)[None, :, None].expand(layers, -1, logits.shape[2], -1)  # [l b n t]
        likely = logits.softmax(-1).gather(-1, named)  # [l b n t]
        distance = (found[..., None, :] - boxes[None, :, None]).abs().sum(-1)
        overlap = generalised_overlap(corners(found)[..., None, :], corners(boxes)[None, :, None])
        costs = self.distance_cost * distance - self.class_cost * likely - self.overlap_cost * overlap
        costs = costs.nan_to_num(nan=FAR, posinf=FAR, neginf=FAR).clamp(max=FAR)
        table, there = costs.flatten(0, 1).cpu().numpy(), (labels >= 0).cpu().numpy()  # one wait for the device
        triples = assign_many(table, np.tile(there, (layers, 1)))  # of layer · picture, query and object
        layer, picture = np.divmod(triples[:, 0], pictures)
        columns = torch.from_numpy(np.stack([layer, picture, triples[:, 1], triples[:, 2]])).to(logits.device)
        return Matched(*columns)

    def _class_loss(self, logits: Tensor, classes: Tensor) -> Tensor:
        """The mean over all queries of a layer, those without an object counting less. [l]"""
        weights = logits.new_ones(logits.shape[-1])
        weights[-1] = self.no_object_weight
        entropy = F.cross_entropy(logits.flatten(0, 2), classes.flatten(), weights, reduction="none")
        return entropy.view_as(classes).sum((1, 2)) / weights[classes].sum((1, 2))

    @staticmethod
    def _summed(values: Tensor, matched: Matched, layers: int) -> Tensor:
        """The sum of each layer's pairs. [pairs] → [l]"""
        return values.new_zeros(layers).index_add(0, matched.layers, values)
