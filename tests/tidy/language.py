#!/usr/bin/env python3
"""Counts phrases that readers of this tree stumble over, by phrase and folder.

What people read is prose: comments, messages, documents and titles of tests. The table
language.counts beside this file says how many of each phrase a folder may have; tidy reports a
count above the table. A count may only shrink.

  language.py [ROOT]                  prints the counts of today
  language.py --show PHRASE [FOLDER]  prints the places
  language.py --tighten               lowers the table to the counts of today
"""
import collections
import io
import os
import re
import sys
import tokenize

TABLE = 'tests/tidy/language.counts'
SENTENCE = r'(?:^|(?<=[.:!?] ))'  # Where a sentence begins.

# Name, pattern, what to write instead.
PHRASES = [
    ('none', r'\b(which|that|it) is none\b|\bis none of\b|'
     r'(?<![Tt]here )\bis no (?!longer\b|more\b|less\b|\w+er\b)\w+',
     'say what is wrong: "unknown", "invalid", "not a number"'),
    ('of-first', SENTENCE + r'Of (?!course\b)\w', 'begin with a noun'),
    ('what-first', SENTENCE + r'What (?!is the\b|if\b)[^?.;:]*[.;:]', 'name the thing'),
    ('who-first', SENTENCE + r'(Who|Whose|Whom) (?!owns\b)[^?.;:]*[.;:]', 'name the actor'),
    ('whoever', r'\b[Ww]ho(m|se)?ever\b', 'name the actor'),
    ('told', r'\b(is|are|was|were|be|been) told\b', 'report, log, gets an event'),
    ('so-many', r'\b[Ss]o (many|much|old)\b', 'the number, the amount'),
    ('one-that', r'\b[Oo]ne (that|which|whose) (is|has|was|had|are)\b', 'repeat the noun'),
    ('is-there', r'\b(is|are|was|were) there\b(?! (a|an|any|no)\b)', 'exists'),
    ('stands', r'\bstands? (in|on|at|under|behind|before|beside|below|there)\b',
     'is in, is stored in'),
    ('lies', r'\b(lies|lie) (in|on|below|behind|there|under)\b', 'is in, is stored in'),
    ('away', r'\b(is|are|was|were) away\b', 'offline, missing'),
    ('goes', r'\bgoes\b(?! on\b| to\b| into\b| through\b)', 'is deleted, is written, ends, fails'),
    ('taken', r'\btakes (nothing|none|no)\b|\btaken is\b|\b(is|are) taken for\b', 'accepts'),
    ('where-if', r'\b[Ww]here (there (is|are|was|were)|none|nobody|nothing|no)\b', 'if, when'),
    ('whence', r'\b([Ww]hence|[Tt]hereof|[Ww]herein|[Tt]hither)\b', 'from where, of it'),
    ('limping', r'\blimp(s|ing|ed)\b', 'slow'),
]
COMPILED = [(name, re.compile(pattern), advice) for name, pattern, advice in PHRASES]

STRING = r'R"(?P<mark>\w*)\((?P<raw>.*?)\)(?P=mark)"|"(?P<text>(?:\\.|[^"\\\n])*)"'
CPP = re.compile(STRING + r"|'(?:\\.|[^'\\\n])+'|//(?P<comment>[^\n]*)", re.DOTALL)


def cpp_prose(text):
    """(line, prose) of each comment and message. Neighbours are one: a sentence may be long."""
    block, kind, first, end = [], '', 0, 0
    for match in CPP.finditer(text):
        name = 'comment' if match['comment'] is not None else 'text'
        piece = match['comment'] if name == 'comment' else match['raw'] or match['text'] or ''
        if match[0].startswith("'"):
            continue
        between = text[end:match.start()]
        if block and (name != kind or between.strip() or between.count('\n') > 1):
            yield first, ' '.join(block) if kind == 'comment' else ''.join(block)
            block = []
        if not block:
            first = text.count('\n', 0, match.start()) + 1
        block.append(piece.strip() if name == 'comment' else piece)
        kind, end = name, match.end()
    if block:
        yield first, ' '.join(block) if kind == 'comment' else ''.join(block)


def python_prose(text):
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, SyntaxError, IndentationError):
        return
    for token in tokens:
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip('# ')
        elif token.type == tokenize.STRING:
            yield token.start[0], ' '.join(token.string.strip('rbfRBF"\'').split())


def comment_prose(text):
    for number, line in enumerate(text.splitlines(), 1):
        mark = re.search(r'(^|\s)#\s?(.*)', line)
        if mark:
            yield number, mark[2].strip()


def document_prose(text):
    """Paragraphs of a README or a manual page."""
    number, first, block = 0, 1, []
    for number, line in enumerate(text.splitlines() + [''], 1):
        plain = re.sub(r'^\.\w+ ?|^[#*>|-]+ ', '', line).strip()
        if plain and not block:
            first = number
        if plain and not re.match(r'^(\.(Bl|It|El|Pp|Sh|Ss)|[#*|-]+ )', line):
            block.append(plain)
            continue
        if block:
            yield first, ' '.join(block)
        first, block = number, [plain] if plain else []


def prose(path, text):
    first = text.split('\n', 1)[0]
    if path.endswith(('.cc', '.h')):
        return cpp_prose(text)
    if path.endswith('.py') or (first.startswith('#!') and 'python3' in first):
        return python_prose(text)
    if path.endswith('.md') or path.startswith('man/') or path.startswith('docs/'):
        return document_prose(text)
    if path.endswith(('.toml', '.in', '.build')) or first.startswith('#!'):
        return comment_prose(text)
    return ()


def folder_of(path):
    parts = path.split('/')[:-1]
    return '/'.join(parts[:2] if parts[:1] in (['src'], ['tests']) else parts[:1]) or '.'


def places(files):
    """(phrase, folder, path, line, words) of each phrase in the tree."""
    for path, text in sorted(files.items()):
        if path.startswith('tests/tidy/'):
            continue
        for line, words in prose(path, text):
            for name, pattern, _ in COMPILED:
                for match in pattern.finditer(words):
                    yield name, folder_of(path), path, line, match[0]


def count(files):
    return collections.Counter((name, folder) for name, folder, *_ in places(files))


def read_table(text):
    table = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) == 3 and not line.startswith('#'):
            table[words[0], words[1]] = int(words[2])
    return table


def excess(files):
    """(phrase, folder, count, allowed, advice) of each count above the table."""
    table = read_table(files.get(TABLE, ''))
    advice = {name: words for name, _, words in PHRASES}
    for (name, folder), number in sorted(count(files).items()):
        allowed = table.get((name, folder), 0)
        if number > allowed:
            yield name, folder, number, allowed, advice[name]


def table_text(counts):
    head = ('# How often a folder may have a phrase: phrase, folder, count. See language.py.\n'
            '# No number may rise, and no row may be added.\n')
    return head + ''.join(f'{name} {folder} {number}\n'
                          for (name, folder), number in sorted(counts.items()) if number)


def tighten(root, files):
    """Lowers the table; with no table, writes it."""
    now = count(files)
    if TABLE in files:
        now = {key: min(allowed, now.get(key, 0))
               for key, allowed in read_table(files[TABLE]).items()}
    with open(os.path.join(root, TABLE), 'w', encoding='utf-8') as stream:
        stream.write(table_text(now))


def main(files, root, arguments):
    if arguments[:1] == ['--show']:
        for name, folder, path, line, words in places(files):
            if name == arguments[1] and arguments[2:3] in ([], [folder]):
                print(f'{path}:{line}: {" ".join(words.split())}')
    elif arguments[:1] == ['--tighten']:
        tighten(root, files)
    else:
        print(table_text(count(files)), end='')


if __name__ == '__main__':
    import importlib.machinery
    import importlib.util
    HERE = os.path.dirname(os.path.abspath(__file__))
    TOP = os.path.abspath(os.path.join(HERE, '..', '..'))
    loader = importlib.machinery.SourceFileLoader('tidy', os.path.join(HERE, 'tidy'))
    tidy = importlib.util.module_from_spec(importlib.util.spec_from_loader('tidy', loader))
    sys.dont_write_bytecode = True
    loader.exec_module(tidy)
    main(tidy.Tree(TOP).files, TOP, sys.argv[1:])
