// Package nfc puts text into Unicode's normal form C, in which two spellings of the same characters are equal.
//
// The standard library has no such function. The server normalises names by itself; the client does it too, so that it
// can tell whether a name is too long, and so that all languages send the same bytes.
package nfc

//go:generate python3 tables.py

import (
	"strconv"
	"strings"
	"sync"
)

// The syllables of Hangul are put together by arithmetic.
const (
	syllables, leads, vowels, trails  = 0xAC00, 0x1100, 0x1161, 0x11A7
	leadCount, vowelCount, trailCount = 19, 21, 28
	syllablesPerLead                  = vowelCount * trailCount
	syllableCount                     = leadCount * syllablesPerLead
)

type data struct {
	parts   map[rune][]rune  // the parts of a character
	whole   map[[2]rune]rune // the character that two parts make
	classes map[rune]uint8   // the order of combining characters
}

var (
	once   sync.Once
	tables data
)

func load() {
	tables = data{map[rune][]rune{}, map[[2]rune]rune{}, map[rune]uint8{}}
	for _, item := range strings.Split(strings.TrimSuffix(decompositions, ";"), ";") {
		numbers := hexes(strings.TrimPrefix(item, "!"))
		tables.parts[numbers[0]] = numbers[1:]
		if item[0] != '!' && len(numbers) == 3 {
			tables.whole[[2]rune{numbers[1], numbers[2]}] = numbers[0]
		}
	}
	for _, item := range strings.Split(strings.TrimSuffix(combining, ";"), ";") {
		numbers := hexes(item)
		for char := numbers[0]; char <= numbers[1]; char++ {
			tables.classes[char] = uint8(numbers[2])
		}
	}
}

func hexes(item string) []rune {
	var numbers []rune
	for _, word := range strings.Fields(item) {
		number, _ := strconv.ParseUint(word, 16, 32) // the tables are generated
		numbers = append(numbers, rune(number))
	}
	return numbers
}

// String returns the text in normal form C.
func String(text string) string {
	plain := true
	for i := 0; i < len(text) && plain; i++ {
		plain = text[i] < 0x80
	}
	if plain {
		return text
	}
	once.Do(load)
	var chars []rune
	for _, char := range text {
		chars = takeApart(chars, char)
	}
	order(chars)
	return string(putTogether(chars))
}

func takeApart(chars []rune, char rune) []rune {
	if at := char - syllables; 0 <= at && at < syllableCount {
		chars = append(chars, leads+at/syllablesPerLead, vowels+at%syllablesPerLead/trailCount)
		if trail := at % trailCount; trail != 0 {
			chars = append(chars, trails+trail)
		}
		return chars
	}
	parts, ok := tables.parts[char]
	if !ok {
		return append(chars, char)
	}
	for _, part := range parts {
		chars = takeApart(chars, part)
	}
	return chars
}

// order sorts each run of combining characters by class, and keeps the order within a class.
func order(chars []rune) {
	for i := 1; i < len(chars); i++ {
		class := tables.classes[chars[i]]
		for j := i; class != 0 && j > 0 && tables.classes[chars[j-1]] > class; j-- {
			chars[j-1], chars[j] = chars[j], chars[j-1]
		}
	}
}

func putTogether(chars []rune) []rune {
	out := chars[:0]
	start := -1      // where in out the last starter is
	last := uint8(0) // the class of the character before, if it was not joined to the starter
	for _, char := range chars {
		class := tables.classes[char]
		blocked := start < len(out)-1 && (last == 0 || last >= class)
		if start >= 0 && !blocked {
			if whole, ok := join(out[start], char); ok {
				out[start] = whole
				continue
			}
		}
		if class == 0 {
			start = len(out)
		}
		last = class
		out = append(out, char)
	}
	return out
}

func join(a, b rune) (rune, bool) {
	if lead, vowel := a-leads, b-vowels; 0 <= lead && lead < leadCount && 0 <= vowel && vowel < vowelCount {
		return syllables + (lead*vowelCount+vowel)*trailCount, true
	}
	if at, trail := a-syllables, b-trails; 0 <= at && at < syllableCount && at%trailCount == 0 &&
		0 < trail && trail < trailCount {
		return a + trail, true
	}
	whole, ok := tables.whole[[2]rune{a, b}]
	return whole, ok
}
