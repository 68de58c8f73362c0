// Package docstest runs the code blocks of a document as a reader would: from the top to the bottom, in a directory of their own, and
// compares what they print with what the document says that they print.
//
// The rules hold for every fenced block of a page. A block that falls under none of them fails the test, so that no block stays untried.
//
//   - A sh block is run by bash, which stops at the first command that fails. The directory and exported variables last until the end of
//     the page. A block that is one of Page.Started is not run: the test did that already.
//   - A block with file=NAME after its language is written to that file: `python file=app.py`.
//   - A block of a language in Page.Programs is a part of a program. Blocks of one language that follow each other, without a sh block
//     between them, are one program, which runs where they end.
//   - A text block after a block that is run is what this prints on stdout. "..." in it stands for anything, within a line or, alone on a
//     line, for lines.
//   - A block with shown after its language, as for a part of a settings file, is only shown.
//
// It starts no goroutine of its own.
package docstest
