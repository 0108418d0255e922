module github.com/revfence/revfence/docs/examples

go 1.26.0

replace github.com/revfence/revfence => ../..
