package lab

import (
	"context"
	"fmt"
	"os"

	"github.com/ydb-sidecar/sidecar/proof/stand"
)

// Child is a part of an experiment that runs as a process of its own, so that its CPU time and memory are its own.
type Child func(ctx context.Context, args []string) error

// ChildCommand is the command under which this program runs a child. The names of the experiment and of the child
// follow, and then the child's arguments.
const ChildCommand = "child"

// ChildSpec returns how to start a child of an experiment: this program once more.
func ChildSpec(experiment, child string, args ...string) (stand.Spec, error) {
	program, err := os.Executable()
	if err != nil {
		return stand.Spec{}, fmt.Errorf("find this program: %w", err)
	}
	return stand.Spec{Path: program, Args: append([]string{ChildCommand, experiment, child}, args...)}, nil
}

// RunChild runs the child that the arguments name: an experiment, one of its children, and the child's own arguments.
func RunChild(ctx context.Context, experiments []Experiment, args []string) error {
	for _, e := range experiments {
		if len(args) > 1 && e.Name == args[0] && e.Children[args[1]] != nil {
			return e.Children[args[1]](ctx, args[2:])
		}
	}
	return fmt.Errorf("no experiment has a child %q", args)
}
