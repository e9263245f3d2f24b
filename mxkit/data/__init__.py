"""Loaders, datasets and augmentation: the data of a training loop."""

from mxkit.core.device import Shards as Shards
from mxkit.core.device import split_batch as split_batch

from .augmentation.augment import Augment as Augment
from .augmentation.mixing import cutmix as cutmix
from .augmentation.mixing import mixup as mixup
from .augmentation.mixing import smooth_labels as smooth_labels
from .balancing import class_weights as class_weights
from .buckets import BucketLoader as BucketLoader
from .dataset_loader import DatasetLoader as DatasetLoader
from .datasets import cifar10 as cifar10
from .datasets import cifar100 as cifar100
from .datasets import digits as digits
from .datasets import fashion_mnist as fashion_mnist
from .datasets import made_linear as made_linear
from .datasets import mnist as mnist
from .describing import describe as describe
from .files.cache import clean_cache as clean_cache
from .files.cache import list_cache as list_cache
from .files.download import fetch as fetch
from .files.image_files import ImageFiles as ImageFiles
from .files.image_files import image_folder as image_folder
from .files.imagenet_files import imagenet as imagenet
from .files.record_images import ImageRecords as ImageRecords
from .files.record_images import image_records as image_records
from .files.tables import csv as csv
from .files.tables import lines as lines
from .loader import ArrayLoader as ArrayLoader
from .pairs import PairLoader as PairLoader
from .splits import Split as Split
from .splits import Splits as Splits
from .splits import channel_statistics as channel_statistics
from .stream import StreamLoader as StreamLoader
from .text_lines import from_lines as from_lines
