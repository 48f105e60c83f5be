# SPDX-License-Identifier: MIT
"""The command line: data on stdout, everything else on stderr, documented exit codes.

    main        the root command; imports the others when they are called
    options     options of several commands
    output      tables, texts and JSON documents
    exits       exit codes
    discovery   which app and which store; `loading` imports it
    the rest    one module per command, and what it alone needs

No module imports user code before a command needs the app. A command's module imports what does
the work when it is called, so that `--help` needs neither app nor store.
"""

from __future__ import annotations
