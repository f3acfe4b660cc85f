package workload

import (
	"fmt"
	"slices"
	"strings"
)

// Model is what of a model shapes its KV cache.
type Model struct {
	Name       string
	Layers     int
	KVHeads    int
	HeadDim    int // elements
	DTypeBytes int // bytes an element
	PageTokens int // tokens a page
	// Latent marks multi-head latent attention: in place of keys and values each
	// token has one vector, which every rank holds whole.
	Latent bool
}

// DefaultModel is the model that is used if none is named.
const DefaultModel = "llama-3-70b"

// Models returns the presets, from their published configurations, in bfloat16
// and with the page sizes usual in serving.
func Models() []Model {
	return []Model{
		{Name: "deepseek-v3", Layers: 61, KVHeads: 1, HeadDim: 512 + 64, DTypeBytes: 2, PageTokens: 64, Latent: true},
		{Name: "llama-3-70b", Layers: 80, KVHeads: 8, HeadDim: 128, DTypeBytes: 2, PageTokens: 16},
		{Name: "llama-3-8b", Layers: 32, KVHeads: 8, HeadDim: 128, DTypeBytes: 2, PageTokens: 16},
		{Name: "mistral-7b", Layers: 32, KVHeads: 8, HeadDim: 128, DTypeBytes: 2, PageTokens: 16},
		{Name: "qwen2.5-72b", Layers: 80, KVHeads: 8, HeadDim: 128, DTypeBytes: 2, PageTokens: 16},
		{Name: "qwen3-235b", Layers: 94, KVHeads: 4, HeadDim: 128, DTypeBytes: 2, PageTokens: 16},
		{Name: "tiny", Layers: 2, KVHeads: 4, HeadDim: 8, DTypeBytes: 2, PageTokens: 4},
	}
}

// ModelNames lists the names of the presets.
func ModelNames() []string {
	var names []string
	for _, m := range Models() {
		names = append(names, m.Name)
	}
	return names
}

// ModelByName returns a preset. The error for an unknown name lists the valid ones.
func ModelByName(name string) (Model, error) {
	all := Models()
	if i := slices.IndexFunc(all, func(m Model) bool { return strings.EqualFold(m.Name, name) }); i >= 0 {
		return all[i], nil
	}
	return Model{}, fmt.Errorf("workload: unknown model %q; valid are %s", name, strings.Join(ModelNames(), ", "))
}

// pools is how many pools a layer has.
func (m *Model) pools() int {
	if m.Latent {
		return 1
	}
	return 2
}

// headBytes is the size of one head of one token in one pool.
func (m *Model) headBytes() int { return m.HeadDim * m.DTypeBytes }

// TokenBytes is the size of a token's keys and values, of all heads and layers.
func (m *Model) TokenBytes() int { return m.Layers * m.pools() * m.KVHeads * m.headBytes() }

// validate rejects models whose arithmetic would overflow or divide by zero.
func (m *Model) validate() error {
	for _, f := range []struct {
		name       string
		value, max int
	}{
		{"layers", m.Layers, 1 << 12},
		{"KV heads", m.KVHeads, 1 << 10},
		{"head size", m.HeadDim, 1 << 14},
		{"bytes an element", m.DTypeBytes, 8},
		{"tokens a page", m.PageTokens, 1 << 12},
	} {
		if f.value < 1 || f.value > f.max {
			return fmt.Errorf("workload: model %s: %d %s, valid is 1 to %d", m.Name, f.value, f.name, f.max)
		}
	}
	if m.Latent && m.KVHeads != 1 {
		return fmt.Errorf("workload: model %s: a latent model has 1 KV head, not %d", m.Name, m.KVHeads)
	}
	return nil
}
