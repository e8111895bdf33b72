module longboat.test/pause

go 1.26.0
