package nfc

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"
)

func TestEveryCharacterNormalisesAsElsewhere(t *testing.T) {
	once.Do(load)
	digest := sha256.New()
	for _, item := range strings.Split(strings.TrimSuffix(assigned, ";"), ";") {
		span := spanOf(item)
		for char := span[0]; char <= span[1]; char++ {
			var apart []rune
			apart = takeApart(apart, char)
			order(apart)
			digest.Write([]byte(String(string(apart))))
			digest.Write([]byte(String("a\u0327" + string(char) + "\u0301\u0323")))
		}
	}
	if got := hex.EncodeToString(digest.Sum(nil)); got != sampleDigest {
		t.Errorf("the sample normalises to %s, not to %s (Unicode %s)", got, sampleDigest, unicodeVersion)
	}
}

func TestSpellingsOfOneTextAreEqual(t *testing.T) {
	for _, pair := range [][2]string{
		{"cafe\u0301", "café"},
		{"\u1112\u1161\u11ab", "한"},
		{"\u212b", "\u00c5"},
		{"q\u0307\u0323", "q\u0323\u0307"},
		{"plain", "plain"},
		{"", ""},
	} {
		if String(pair[0]) != String(pair[1]) {
			t.Errorf("%+q becomes %+q, and %+q becomes %+q", pair[0], String(pair[0]), pair[1], String(pair[1]))
		}
	}
}

func spanOf(item string) [2]rune {
	numbers := hexes(item)
	return [2]rune{numbers[0], numbers[1]}
}
