// Judges a recorded history of one topology: is there an order of its operations, each between its call and its
// return, in which docs/protocol.md allows every answer? The model knows that page alone, and no code.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

const mostStates = 4

type Token struct {
	Generation int    `json:"generation"`
	Txid       int    `json:"txid"`
	Attempt    int    `json:"attempt"`
	Epoch      int    `json:"epoch"`
	Nonce      string `json:"nonce"`
}

type Operation struct {
	Id      string `json:"id"`
	Kind    string `json:"kind"` // raise, write, raise_write, mark, skip, total, current
	State   int    `json:"state"`
	Client  int    `json:"client"`
	Call    int64  `json:"call"`
	Return  int64  `json:"return"`
	Outcome string `json:"outcome"` // ok, or unknown: it may have happened until Return
	Token   Token  `json:"token"`
	Delta   int64  `json:"delta"`
	Value   int64  `json:"value"`
}

// Fence stands beside a state: the newest grant that has raised it, and what that grant has written (§7).
type Fence struct {
	Token   Token
	Wrote   bool
	Pending int64
	Total   int64 // of all committed transactions
}

type Topology struct {
	States  int
	Current int // whose turn it is
	Fences  [mostStates]Fence
}

func rank(token Token) [4]int {
	return [4]int{token.Generation, token.Txid, token.Attempt, token.Epoch}
}

func below(one, other Token) bool {
	a, b := rank(one), rank(other)
	for i := range a {
		if a[i] != b[i] {
			return a[i] < b[i]
		}
	}
	return false
}

// A raise needs a larger token, or the same grant. It rolls back what a smaller token of this txid wrote (§7).
func (t *Topology) raise(op Operation) bool {
	fence := &t.Fences[op.State]
	if fence.Token == op.Token {
		return true
	}
	if op.Token.Txid != t.Current || !below(fence.Token, op.Token) {
		return false
	}
	*fence = Fence{Token: op.Token, Total: fence.Total}
	return true
}

// A write needs the fence to hold exactly its token; every fence is raised before the first write to any state.
func (t *Topology) write(op Operation) bool {
	fence := &t.Fences[op.State]
	if fence.Token != op.Token || op.Token.Txid != t.Current {
		return false
	}
	for _, other := range t.Fences[:t.States] {
		if below(other.Token, op.Token) {
			return false
		}
	}
	fence.Wrote, fence.Pending = true, op.Delta
	return true
}

// A transaction ends under exactly the grant that every fence holds: committed with all that is written, or without.
func (t *Topology) end(token Token, skipped bool) bool {
	if token.Txid != t.Current {
		return false
	}
	for i := range t.Fences[:t.States] {
		fence := &t.Fences[i]
		if fence.Token != token || (skipped && fence.Pending != 0) || (!skipped && !fence.Wrote) {
			return false
		}
		fence.Total, fence.Pending, fence.Wrote = fence.Total+fence.Pending, 0, false
	}
	t.Current++
	return true
}

func (t *Topology) does(op Operation) bool {
	switch op.Kind {
	case "raise":
		return t.raise(op)
	case "write":
		return t.write(op)
	case "raise_write":
		return t.raise(op) && t.write(op)
	case "mark", "skip":
		return t.end(op.Token, op.Kind == "skip")
	case "total": // a reader may see values before their mark
		fence := t.Fences[op.State]
		return op.Value == fence.Total+fence.Pending
	case "current":
		return op.Value == int64(t.Current)
	}
	panic("operation of kind " + op.Kind)
}

func step(state, input, _ interface{}) []interface{} {
	before, op := state.(Topology), input.(Operation)
	after := before
	done := after.does(op)
	possible := []interface{}{}
	if done {
		possible = append(possible, after)
	}
	if op.Outcome == "unknown" && (!done || after != before) {
		possible = append(possible, before)
	}
	return possible
}

func main() {
	var history struct {
		States     int         `json:"states"`
		Operations []Operation `json:"operations"`
	}
	data, err := os.ReadFile(os.Args[1])
	if err == nil {
		err = json.Unmarshal(data, &history)
	}
	if err != nil {
		panic(err)
	}
	model := porcupine.NondeterministicModel{
		Init:  func() []interface{} { return []interface{}{Topology{States: history.States, Current: 1}} },
		Step:  step,
		Equal: func(one, other interface{}) bool { return one == other },
	}
	var operations []porcupine.Operation
	for _, op := range history.Operations {
		operations = append(operations, porcupine.Operation{ClientId: op.Client, Input: op, Call: op.Call, Return: op.Return})
	}
	result, info := porcupine.CheckOperationsVerbose(model.ToModel(), operations, 120*time.Second)
	fmt.Println(result)
	if result == porcupine.Illegal {
		explain(history.Operations, info)
	}
}

// explain prints the longest order that the protocol allows, its end at least, and the next operations, none of which fits.
func explain(operations []Operation, info porcupine.LinearizationInfo) {
	var longest []porcupine.Operation
	for _, partition := range info.PartialLinearizationsOperations() {
		for _, each := range partition {
			if len(each) > len(longest) {
				longest = each
			}
		}
	}
	placed := map[string]bool{}
	for _, each := range longest {
		placed[each.Input.(Operation).Id] = true
	}
	fmt.Println(len(longest), "of", len(operations), "operations have an order. It ends with:")
	for _, each := range longest[max(0, len(longest)-6):] {
		fmt.Printf("  %+v\n", each.Input)
	}
	fmt.Println("None of the next ones fits:")
	sort.Slice(operations, func(i, j int) bool { return operations[i].Call < operations[j].Call })
	left := 0
	for _, op := range operations {
		if !placed[op.Id] && left < 8 {
			fmt.Printf("  %+v\n", op)
			left++
		}
	}
}
