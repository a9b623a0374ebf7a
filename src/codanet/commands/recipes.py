"""`codanet recipes`."""

from .table import no_more, print_table


def main(arguments: list[str]) -> int:
    no_more("recipes", arguments)
    from ..settings import list_recipes, load_recipe

    print_table([(name, load_recipe(name).about) for name in list_recipes()])
    return 0
