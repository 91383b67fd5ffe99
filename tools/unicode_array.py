"""How the generators of the tokenizers' tables write C++ arrays."""


def array(name, comment, numbers):
    print(f"/// {comment}\nconst std::uint32_t {name}[] = {{")
    line = ""
    for number in numbers:
        item = f"{number},"
        if len(line) + len(item) > 118:
            print(line)
            line = ""
        line += item
    print(f"{line}\n}};\nconst std::size_t {name}Count = sizeof {name} / sizeof {name}[0];\n")
