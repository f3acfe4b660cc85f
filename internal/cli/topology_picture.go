package cli

import (
	"encoding/xml"
	"fmt"
	"strings"
)

// Colours of rails, in turn. They can be told apart by the colour-blind as far as
// eight allow; names stand beside them.
var railColours = [...]string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#7b61c4", "#5f6b7a"}

const (
	inkColour   = "#1d2733"
	dimColour   = "#667585"
	paperColour = "#ffffff"
	nodeColour  = "#f3f6f9"
	nodeLine    = "#c9d3dd"
	gpuColour   = "#e9f5dc"
	gpuLine     = "#76a83a"
	nicColour   = "#e6f0fa"
	nicLine     = "#4b86bf"
	offColour   = "#f2f2f2"
	offLine     = "#b9b9b9"
	badColour   = "#b3261e"
	wireColour  = "#8895a3"
)

// picture is a drawing in progress.
type picture struct {
	b strings.Builder
}

func (p *picture) rect(x, y, w, h, round int, fill, stroke, more string) {
	fmt.Fprintf(&p.b, `<rect x="%d" y="%d" width="%d" height="%d" rx="%d" fill="%s" stroke="%s" %s/>`+"\n", x, y, w, h, round, fill, stroke, more)
}

func (p *picture) line(x1, y1, x2, y2 int, stroke string, width float64, more string) {
	fmt.Fprintf(&p.b, `<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="%s" stroke-width="%g" %s/>`+"\n", x1, y1, x2, y2, stroke, width, more)
}

// text writes one line; what is longer than room pixels is cut.
func (p *picture) text(x, y, size, room int, colour, more, s string) {
	const perPixel = 1.75 // signs of a font of this size in as many pixels, at least
	most := max(int(float64(room)/float64(size)*perPixel), 2)
	if r := []rune(clean(s)); len(r) > most {
		s = string(r[:most-1]) + "…"
	} else {
		s = string(r)
	}
	var escaped strings.Builder
	xml.EscapeText(&escaped, []byte(s))
	fmt.Fprintf(&p.b, `<text x="%d" y="%d" font-size="%d" fill="%s" %s>%s</text>`+"\n", x, y, size, colour, more, escaped.String())
}

const (
	bold   = `font-weight="600"`
	middle = `text-anchor="middle"`
)
