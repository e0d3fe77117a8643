package bakery

import "sync"

// Queue keeps orders in the order they came.
type Queue struct {
	mu     sync.Mutex
	orders []Order
}

type Order struct {
	Loaf  string
	Count int
}

// Push adds an order at the end.
func (q *Queue) Push(o Order) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.orders = append(q.orders, o)
}

func New() *Queue {
	return &Queue{}
}
