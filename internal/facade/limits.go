package facade

// What a request takes once it is decoded, in bytes, besides what came: TestRequestsTakeWhatIsCounted measures it.
const (
	decodedTwice = 2   // copies: by a decoder, and as it goes on to a node; what large parameters take in between is counted once they are bound
	valueCost    = 300 // of each value: the message of either face and that of YDB
)

// bound is how many entries a part of a request may have.
type bound struct {
	what    string
	most    int // 0: any number
	setting string
}

// boundOf is that of a member of a request.
func (a API) boundOf(member string) bound {
	switch member {
	case "params":
		return bound{"params", a.MaxParams, "api.max_params"}
	case "types":
		return bound{"types", a.MaxParams, "api.max_params"}
	case "statements":
		return bound{"statements", a.MaxStatements, "api.max_statements"}
	}
	return bound{}
}

func (b bound) exceeded() error { return overLimit(b.what, b.most, b.most, b.setting) }
