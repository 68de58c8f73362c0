//go:build !race

package pool

const poolForgets = false
