// Worker runs in the containers of e2e: it does nothing until it is terminated.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM, syscall.SIGINT) // as PID 1 it gets only signals that it handles
	<-end
}
