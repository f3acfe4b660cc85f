module github.com/railhop/railhop

go 1.26
