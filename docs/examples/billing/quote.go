package main

import (
	"encoding/csv"
	"errors"
)

// notClosed is also what becomes of a field with a line break in it, which no column has.
const notClosed = "the quote that opens here is not closed on its line"

// quoteError says where a quote is wrong. Package csv notices a missing one where the next quote stands, or
// at the end of the file, which may be thousands of lines further down.
func quoteError(data []byte, pe *csv.ParseError) error {
	if !errors.Is(pe.Err, csv.ErrQuote) {
		return &inputError{pe.Line, pe.Column, "", pe.Err}
	}
	line, column, field, open := findQuote(data, pe.StartLine)
	if !open && line == pe.Line {
		return &inputError{pe.Line, pe.Column, "", errors.New(`a quote inside a quoted field has to be doubled: ""`)}
	}
	name := ""
	if field < len(columns) {
		name = columns[field]
	}
	if open {
		return &inputError{line, column, name, errors.New("the quote that opens here is never closed")}
	}
	return &inputError{line, column, name, errors.New(notClosed)}
}

// findQuote returns the place of the quote that opens the first ill-quoted field of the record that starts
// on the given line, and whether it stays open to the end.
func findQuote(data []byte, start int) (line, column, field int, open bool) {
	line, column = 1, 1
	i := 0
	next := func() {
		if data[i] == '\n' {
			line, column = line+1, 0
		}
		i++
		column++
	}
	at := func(n int) byte { // 0 behind the end
		if n < len(data) {
			return data[n]
		}
		return 0
	}
	for i < len(data) && line < start {
		next()
	}
	for i < len(data) {
		if data[i] == '"' {
			l, c := line, column
			next()
			for i < len(data) && (data[i] != '"' || at(i+1) == '"') {
				if data[i] == '"' {
					next()
				}
				next()
			}
			if i == len(data) {
				return l, c, field, true
			}
			next() // the closing quote; what may follow is the end of the field
			if b := at(i); i < len(data) && b != ',' && b != '\n' && (b != '\r' || i+1 < len(data) && at(i+1) != '\n') {
				return l, c, field, false
			}
		}
		for i < len(data) && data[i] != ',' {
			next()
		}
		if i < len(data) {
			next()
			field++
		}
	}
	return line, column, field, true
}
