"""How the generators of the tokenizers' tables write C++ arrays."""


def lines(numbers):
    """As the elements of an array, in lines of 120 columns at most."""
    line = ""
    for number in numbers:
        item = f"{number},"
        if len(line) + len(item) > 118:
            print(line)
            line = ""
        line += item
    print(line)


def array(name, comment, numbers):
    print(f"/// {comment}\nconst std::uint32_t {name}[] = {{")
    lines(numbers)
    print(f"}};\nconst std::size_t {name}Count = sizeof {name} / sizeof {name}[0];\n")
