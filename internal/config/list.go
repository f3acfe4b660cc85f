package config

import (
	"fmt"
	"slices"
	"strings"
)

// parseFilters reads MC_TE_FILTERS: a comma list in which empty places are
// nothing, as in Mooncake.
func parseFilters(text string) ([]Device, error) {
	words := slices.DeleteFunc(strings.Split(text, ","), func(w string) bool { return strings.TrimSpace(w) == "" })
	if len(words) == 0 {
		return nil, fmt.Errorf("filters: %s names no device", quote(text))
	}
	devices, _, err := parseDevices(strings.Join(words, ","))
	return devices, err
}

// parsePeerAffinity reads MC_NIC_PEER_AFFINITY: l0=p0,p1;l1=p2.
func parsePeerAffinity(text string) (map[string][]string, error) {
	peers := map[string][]string{}
	for rule := range strings.SplitSeq(strings.TrimSuffix(text, ";"), ";") {
		local, list, found := strings.Cut(rule, "=")
		local = strings.TrimSpace(local)
		if !found {
			return nil, fmt.Errorf("peer affinity: %s has no =", quote(rule))
		}
		if _, twice := peers[local]; twice {
			return nil, fmt.Errorf("peer affinity: %s appears twice", quote(local))
		}
		if _, err := parseDevice(local); err != nil {
			return nil, err
		}
		for peer := range strings.SplitSeq(list, ",") {
			peer = strings.TrimSpace(peer)
			if _, err := parseDevice(peer); err != nil {
				return nil, err
			}
			peers[local] = append(peers[local], peer)
		}
	}
	return peers, nil
}

func parseProviders(text string) (Providers, bool) {
	var p Providers
	words := strings.Split(text, ",")
	for _, w := range words {
		switch strings.ToLower(strings.TrimSpace(w)) {
		case "auto":
			p.Auto = true
		case "soft":
			p.Soft = true
		case "cuda":
			p.CUDA = true
		case "verbs":
			p.Verbs = true
		default:
			return Providers{}, false
		}
	}
	return p, !p.Auto || len(words) == 1
}

func validGroupID(s string) bool {
	if len(s) < 1 || len(s) > 64 || s == "." || s == ".." {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool {
		letter := r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z'
		digit := r >= '0' && r <= '9'
		return !letter && !digit && r != '_' && r != '.' && r != '-'
	})
}
