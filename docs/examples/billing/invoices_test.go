package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

const header = "invoice,customer,amount,currency\n"

func TestParseInvoices(t *testing.T) {
	want := []invoice{{"A-1", "Okafor & Sons, Ltd.", 231000, "EUR"}, {"A-2", "Café Brûlot", 8640, "USD"}}
	for name, in := range map[string]string{
		"plain":         header + "A-1,\"Okafor & Sons, Ltd.\",2310.00,EUR\nA-2,Café Brûlot,86.40,USD\n",
		"no last break": header + "A-1,\"Okafor & Sons, Ltd.\",2310,EUR\nA-2,Café Brûlot,86.40,USD",
		"CRLF":          strings.ReplaceAll(header+"A-1,\"Okafor & Sons, Ltd.\",2310,EUR\nA-2,Café Brûlot,86.40,USD\n", "\n", "\r\n"),
		"BOM":           "\ufeff" + header + "A-1,\"Okafor & Sons, Ltd.\",2310,EUR\nA-2,Café Brûlot,86.40,USD\n",
		"empty lines":   header + "\nA-1,\"Okafor & Sons, Ltd.\",2310,EUR\n\nA-2,Café Brûlot,86.40,USD\n\n",
	} {
		got, err := parseInvoices([]byte(in))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %v, %v", name, got, err)
		}
	}
}

func TestParseInvoicesNamesThePlace(t *testing.T) {
	for _, c := range []struct {
		name, in     string
		line, column int
		field        string
		says         string
	}{
		{"header", "invoice,client,amount,currency\nA,B,1.00,EUR\n", 1, 9, "customer", `"client"`},
		{"header missing", "A-1,Bau AG,1.00,EUR\n", 1, 1, "invoice", "header"},
		{"header missing says which", "A-1,Bau AG,1.00,EUR\n", 1, 1, "invoice", "must be the header invoice,customer,amount,currency;"},
		{"semicolons", "invoice;customer;amount;currency\n", 1, 1, "invoice", "separate the fields with commas"},
		{"semicolons below", header + "A-1;Bau AG;1.00;EUR\n", 2, 20, "customer", "1 field, want 4 (invoice,customer,amount,currency); separate"},
		{"no CSV", strings.Repeat("x", 1000), 1, 1, "invoice", `"...`},
		{"header short", "invoice,customer,amount\n", 1, 24, "currency", "missing"},
		{"fields short", header + "A-1,Bau AG,1.00\n", 2, 16, "currency", "3 fields"},
		{"fields long", header + "A-1,Bau AG,1.00,EUR,paid\n", 2, 21, "", "5 fields"},
		{"amount", header + "A-1,Bau AG,1.00,EUR\nA-2,Bau AG,\"12,50\",EUR\n", 3, 12, "amount", `"12,50"`},
		{"amount negative", header + "A-1,Bau AG,-1.00,EUR\n", 2, 12, "amount", "negative"},
		{"amount empty", header + "A-1,Bau AG,,EUR\n", 2, 12, "amount", "empty"},
		{"currency", header + "A-1,Bau AG,1.00,Eur\n", 2, 17, "currency", `"Eur"`},
		{"id empty", header + ",Bau AG,1.00,EUR\n", 2, 1, "invoice", "empty"},
		{"id blank", header + "A-1,Bau AG,1.00,EUR\n  ,Bau AG,1.00,EUR\n", 3, 1, "invoice", "space"},
		{"id twice", header + "A-1,Bau AG,1.00,EUR\nA-2,Bau AG,1.00,EUR\nA-1,Bau AG,2.00,EUR\n", 4, 1, "invoice", "on line 2"},
		{"customer spaces", header + "A-1, Bau AG,1.00,EUR\n", 2, 5, "customer", "space"},
		{"customer long", header + "A-1," + strings.Repeat("é", 81) + ",1.00,EUR\n", 2, 5, "customer", "80"},
		{"escape sequence", header + "A-1,Bau\x1b[2J,1.00,EUR\n", 2, 5, "customer", "do not print"},
		{"not UTF-8", header + "A-1,Caf\xe9,1.00,EUR\n", 2, 5, "customer", "UTF-8"},
		{"bare quote", header + "A-1,Bau \"AG\",1.00,EUR\n", 2, 9, "", `"`},
		{"quote not doubled", header + "A-1,\"Bau \"AG\"\",1.00,EUR\n", 2, 10, "", "doubled"},
		{"open quote", header + "A-1,\"Bau AG,1.00,EUR\n", 2, 5, "customer", "never closed"},
		{"open quote far up", header + "A-1,Bau AG,1.00,EUR\n\nA-2,\"Bau \"\"AG\"\", \",\"1.00,EUR\nA-3,Bau AG,1.00,EUR\n\n", 4, 20, "amount", "never closed"},
		{"open quote, CRLF", strings.ReplaceAll(header+"A-1,\"Bau AG\",\"1.00,EUR\nA-2,Bau AG,1.00,EUR\n", "\n", "\r\n"), 2, 14, "amount", "never closed"},
		{"open quote in the header", "invoice,\"customer,amount,currency\n", 1, 9, "customer", "never closed"},
		{"open quote in the header, closed further down", "invoice,\"customer,amount,currency\nA-1,Bau\",1.00,EUR\n", 1, 9, "customer", "not closed on its line"},
		{"carriage return", header + "A-1,Bau\rAG,1.00,EUR\n", 2, 5, "customer", "do not print"},
		{"open quote at the end", header + "A-1,\"", 2, 5, "customer", "never closed"},
		{"open quote too far right", header + "A-1,Bau AG,1.00,EUR,\"paid\n", 2, 21, "", "never closed"},
		{"open quote, one further down", header + "A-1,\"Bau AG,1.00,EUR\nA-2,\"Bau AG\",1.00,EUR\n", 2, 5, "customer", "not closed on its line"},
		{"open quote, closed further down", header + "A-1,Bau AG,1.00,\"EUR\nA-2,Bau AG,1.00,EUR\"\n", 2, 17, "currency", "not closed on its line"},
		{"open quote, closed before a break", header + "A-1,\"Bau AG\n\",1.00,EUR\n", 2, 5, "customer", "not closed on its line"},
		{"lines within a field", header + "A-1,\"Bau\nAG\",1.00,EUR\n", 2, 5, "customer", "not closed on its line"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := parseInvoices([]byte(c.in))
			var at *inputError
			if !errors.As(err, &at) {
				t.Fatalf("got %v, %v; want an *inputError", got, err)
			}
			if at.line != c.line || at.column != c.column || at.field != c.field || !strings.Contains(at.Error(), c.says) {
				t.Errorf("got %v; want line %d, column %d (%s), saying %s", err, c.line, c.column, c.field, c.says)
			}
		})
	}
}

func TestParseInvoicesEmpty(t *testing.T) {
	for _, in := range []string{"", "\n\n", header} {
		if got, err := parseInvoices([]byte(in)); err == nil || !strings.Contains(err.Error(), "no invoices") {
			t.Errorf("%q: got %v, %v", in, got, err)
		}
	}
}

func TestParseInvoicesTooMany(t *testing.T) {
	var b strings.Builder
	b.WriteString(header)
	for i := range maxInvoices {
		fmt.Fprintf(&b, "A-%d,Bau AG,1.00,EUR\n", i)
	}
	if got, err := parseInvoices([]byte(b.String())); err != nil || len(got) != maxInvoices {
		t.Fatalf("%d invoices, %v; want all", len(got), err)
	}
	b.WriteString("B-1,Bau AG,1.00,EUR\n")
	if _, err := parseInvoices([]byte(b.String())); err == nil {
		t.Fatal("one too many was accepted")
	}
}

func TestLoadInvoices(t *testing.T) {
	got, err := loadInvoices("")
	if err != nil || len(got) != 12 {
		t.Fatalf("the batch that ships: %d invoices, %v", len(got), err)
	}
	dir := t.TempDir()
	if _, err := loadInvoices(filepath.Join(dir, "absent.csv")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("absent: %v", err)
	}
	if _, err := loadInvoices(dir); err == nil {
		t.Error("a directory was read as a batch")
	}
	bad := filepath.Join(dir, "bad.csv")
	if err := os.WriteFile(bad, []byte(header+"A-1,Bau AG,x,EUR\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := loadInvoices(bad); err == nil || !strings.Contains(err.Error(), bad+": line 2, column 12 (amount)") {
		t.Errorf("bad: %v", err)
	}
}

func FuzzParseInvoices(f *testing.F) {
	f.Add(builtin)
	f.Add([]byte(header + "A-1,\"B\"\"x\",1,EUR"))
	f.Add([]byte(header + "A-1,\"B\" ,1,EUR\n\"\"\"\"\r"))
	f.Fuzz(func(t *testing.T, data []byte) {
		batch, err := parseInvoices(data)
		if at, ok := errors.AsType[*inputError](err); ok {
			lines := strings.Split(strings.TrimPrefix(string(data), "\ufeff"), "\n")
			if at.line < 1 || at.line > len(lines) || at.column < 1 || at.column > len(lines[at.line-1])+1 {
				t.Fatalf("%v: there is no such place", err)
			}
			quote := strings.Contains(err.Error(), "opens here")
			if quote && (at.column > len(lines[at.line-1]) || lines[at.line-1][at.column-1] != '"') {
				t.Fatalf("%v: there is no quote", err)
			}
		}
		if err != nil {
			return
		}
		seen := map[string]bool{}
		for _, v := range batch {
			if v.ID == "" || seen[v.ID] || v.Cents <= 0 || len(v.Currency) != 3 {
				t.Fatalf("accepted %+v", v)
			}
			seen[v.ID] = true
			if back, err := parseCents(formatCents(v.Cents)); err != nil || back != v.Cents {
				t.Fatalf("%d comes back as %d, %v", v.Cents, back, err)
			}
		}
	})
}
