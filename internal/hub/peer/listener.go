package peer

import (
	"net"
	"sync"
)

// Listener limits the open connections, in total and per peer. At the total, further
// connections wait; further ones of a peer at its limit are closed.
type Listener struct {
	net.Listener

	each    int
	refused func() // called for each closed connection
	room    chan struct{}
	closed  chan struct{}
	once    sync.Once

	mu   sync.Mutex
	open map[string]int
}

// Listen returns a Listener for n connections, of which one peer may have each.
func Listen(l net.Listener, n, each int, refused func()) *Listener {
	return &Listener{Listener: l, each: each, refused: refused, room: make(chan struct{}, n), closed: make(chan struct{}), open: map[string]int{}}
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		select {
		case l.room <- struct{}{}:
		case <-l.closed:
			return nil, net.ErrClosed
		}
		c, err := l.Listener.Accept()
		if err != nil {
			<-l.room
			return nil, err
		}
		peer := Of(c.RemoteAddr().String())
		if l.enter(peer) {
			return &conn{Conn: c, gone: sync.OnceFunc(func() { l.leave(peer) })}, nil
		}
		<-l.room
		l.refused()
		_ = c.Close() // nothing was sent
	}
}

func (l *Listener) enter(peer string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open[peer] >= l.each {
		return false
	}
	l.open[peer]++
	return true
}

func (l *Listener) leave(peer string) {
	l.mu.Lock()
	if l.open[peer]--; l.open[peer] == 0 {
		delete(l.open, peer)
	}
	l.mu.Unlock()
	<-l.room
}

// Close implements net.Listener.
func (l *Listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

type conn struct {
	net.Conn

	gone func()
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.gone()
	return c.Conn.Close()
}
