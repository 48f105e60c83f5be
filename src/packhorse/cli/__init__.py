# SPDX-License-Identifier: MIT
"""The command line: data on stdout, everything else on stderr, and exit codes that mean something.

    main        the root command and the entry point; loads the others when they are called
    discovery   which app is meant, and what to say when there is none
    options     what several commands take; light, since every `--help` imports it
    target      from --url, --app and the environment to an app whose store can be asked
    render      tables, texts and JSON documents
    exits       exit codes
    the rest    one module a command, and what some of them share

Nothing here imports user code before a command needs the app. A command's module holds its options
and imports what does the work when it is called, so that `--help` needs neither app nor store.
"""

from __future__ import annotations
