"""Which data sets there are. Imports nothing heavy, so the command line answers at once."""

from dataclasses import dataclass

FEWEST_IMAGES = 10  # one a class


@dataclass(frozen=True)
class Recipe:
    """How one set is made; a new version makes the sets on readers' disks be made anew."""

    summary: str
    maker: str  # "module:function", imported only when the set has to be made
    needs: tuple[str, ...]  # modules the maker imports
    images: int | None = None  # default number of training images; None: the size is fixed
    most: int = 0
    version: int = 1


RECIPES = {
    "digits": Recipe(
        "1,797 real handwritten digits as 3x32x32 images, from scikit-learn; no network",
        "helpers.data.making:make_digits", ("numpy", "sklearn")),
    "mock": Recipe(
        "made-up, learnable images in CIFAR-10's own file format; 50,000 for training",
        "helpers.data.making:make_mock", ("numpy",), 50_000, 1_000_000),
    "imagenet-mock": Recipe(
        "made-up 224x224 JPEGs in ImageFolder layout; 640 for training",
        "helpers.data.making:make_imagenet_mock", ("numpy", "PIL"), 640, 100_000),
    "cifar10": Recipe(
        "the real CIFAR-10, downloaded (170 MB) and checked",
        "helpers.data.cifar10:make_cifar10", ("numpy", "torchvision")),
}


def check_request(name: str, images: int | None = None) -> Recipe:
    """The recipe of a set; ValueError for an unknown set or a number it cannot have."""
    recipe = RECIPES.get(name)
    if recipe is None:
        raise ValueError(f"there is no data set {name!r}; the sets are {', '.join(RECIPES)}")
    if images is not None and recipe.images is None:
        sized = ", ".join(n for n, r in RECIPES.items() if r.images)
        raise ValueError(f"{name} has a fixed size; a number of images can be chosen for {sized}")
    if images is not None and not (isinstance(images, int) and FEWEST_IMAGES <= images <= recipe.most):
        raise ValueError(f"the number of training images of {name} must be from {FEWEST_IMAGES} "
                         f"to {recipe.most:,}; got {images}")
    return recipe


def wanted(name: str, images: int | None = None) -> dict:
    """What a set's manifest must say about its making (default size when `images` is None)."""
    recipe = check_request(name, images)
    return {"set": name, "version": recipe.version, "images": images or recipe.images}
