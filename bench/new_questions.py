#!/usr/bin/env python3
"""New questions of the reasoner's kinds, to judge a policy on questions that it was not tuned on.

Each shipped hard question gives its shape (who depends on whom, how often a round is repeated, how deep an expression is);
names are exchanged, numbers drawn anew and the answer is computed. Paths keep their roads under new names, with the trips in a
new order. Before anything is written, the solver has to find the shipped answers.

    bench/new_questions.py models/reasoner/questions FOLDER [--seed 1] [--limit 150] [--numbers any]
"""
import argparse
import collections
import json
import pathlib
import random
import re
import sys

MODULUS = 100


def solve_quantities(text):
    """Each line 'X has ...' defines X; references are followed until the asked name is known."""
    lines = {}
    for line in text.split(" . "):
        match = re.fullmatch(r"(\w+) has (.+)", line)
        if match:
            lines[match[1]] = match[2]
    known = {}

    def value(name):
        if name not in known:
            rule = lines[name]
            if match := re.fullmatch(r"(\d+)", rule):
                known[name] = int(match[1])
            elif match := re.fullmatch(r"(\d+) (more|less) than (\w+)", rule):
                known[name] = value(match[3]) + (1 if match[2] == "more" else -1) * int(match[1])
            elif match := re.fullmatch(r"(\d+) times (\w+)", rule):
                known[name] = int(match[1]) * value(match[2])
            elif match := re.fullmatch(r"as many as (\w+) and (\w+)", rule):
                known[name] = value(match[1]) + value(match[2])
            else:
                raise ValueError(rule)
        return known[name] % MODULUS

    return str(value(re.search(r"how many has (\w+) \?", text)[1]))


def solve_boxes(text):
    """A round of moves, repeated; numbers wrap at the modulus."""
    state = {name: int(n) for name, n in re.findall(r"(\w+) = (\d+)", text)}
    moves = re.findall(r"(\d+) from (\w+) to (\w+)", text)
    repeats = int(re.search(r"repeat (\d+) times", text)[1])
    for _ in range(repeats):
        for n, source, target in moves:
            state[source] = (state[source] - int(n)) % MODULUS
            state[target] = (state[target] + int(n)) % MODULUS
    return str(state[re.search(r"how many has (\w+) \?", text)[1]])


def solve_reduce(text):
    expression = text.split(" find ", 1)[1]
    if not re.fullmatch(r"[\d()+\- ]+", expression):
        raise ValueError(expression)
    return str(eval(expression) % MODULUS)  # digits, brackets and two operators only


SOLVERS = {"quantities": solve_quantities, "boxes": solve_boxes, "reduce": solve_reduce}


def renamed(words, names, rng):
    shuffled = sorted(names)
    rng.shuffle(shuffled)
    new = dict(zip(sorted(names), shuffled))
    return [new.get(word, word) for word in words]


def place(words, i):
    """What a number is there for; numbers of one place are drawn from those that the shipped questions have there."""
    return (words[i + 1] if words[i + 1] in ("more", "less", "times", "from") else "")


def fresh_numbers(words, fixed, pools, rng):
    """Without pools: any number of as many digits."""

    def draw(i, word):
        if pools is not None:
            return rng.choice(pools[place(words, i)])
        return str(rng.randrange(2, 10) if len(word) == 1 else rng.randrange(10, 100))

    return [draw(i, word) if word.isdigit() and i not in fixed else word for i, word in enumerate(words)]


def shape_numbers(words):
    """The modulus, and how often to repeat or check, belong to the shape."""
    return {i for i, word in enumerate(words) if i > 0 and words[i - 1] in ("mod", "repeat", "check")}


def number_pools(questions):
    pools = collections.defaultdict(list)
    for question in questions:
        words = question["messages"][0]["content"].split()
        fixed = shape_numbers(words)
        for i, word in enumerate(words):
            if word.isdigit() and i not in fixed:
                pools[place(words, i)].append(word)
    return pools


def fresh(question, pools, rng):
    text = question["messages"][0]["content"]
    words = text.split()
    if question["task"] == "paths":
        head, trips = text.split(" trips . ")
        answers = question["answer"].split()
        pairs = list(zip(re.findall(r"\w+ to \w+", trips), answers, strict=True))
        rng.shuffle(pairs)
        text = head + " trips . " + " ? ".join(trip for trip, _ in pairs) + " ?"
        names = set(re.findall(r"\b[a-h][w-z]\b", text))
        return " ".join(renamed(text.split(), names, rng)), " ".join(answer for _, answer in pairs)
    names = {word for word in words if re.fullmatch(r"[A-Z][a-z]+", word)}
    text = " ".join(renamed(fresh_numbers(words, shape_numbers(words), pools, rng), names, rng))
    return text, SOLVERS[question["task"]](text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--numbers", choices=("shipped", "any"), default="shipped",
                        help="draw from the numbers of the shipped questions, or any; the model has not learnt all of these")
    parser.add_argument("--limit", type=int, default=150)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(arguments.questions.glob("*.jsonl")):
        shipped = [json.loads(line) for line in path.open()]
        for question in shipped:
            solve = SOLVERS.get(question["task"])
            if solve and solve(question["messages"][0]["content"]) != question["answer"]:
                sys.exit(f"{question['id']}: the solver finds {solve(question['messages'][0]['content'])}, not {question['answer']}")
        hard = [question for question in shipped if question["level"] == "hard"][: arguments.limit]
        pools = number_pools(hard) if arguments.numbers == "shipped" else None
        with (arguments.folder / path.name).open("w") as out:
            for question in hard:
                text, answer = fresh(question, pools, rng)
                new = {"id": f"{question['id']}-{arguments.seed}", "task": question["task"], "level": "hard"}
                new |= {"messages": [{"role": "user", "content": text}], "answer": answer}
                out.write(json.dumps(new) + "\n")


if __name__ == "__main__":
    main()
