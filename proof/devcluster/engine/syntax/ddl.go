package syntax

func (p *parser) createTable() *CreateTable {
	s := &CreateTable{Pos: p.next().pos}
	p.expectWord("TABLE")
	s.IfNotExists = p.word("IF", "NOT", "EXISTS")
	s.Table = p.table()
	p.expect("(")
	for !p.peek().punct(")") {
		p.tableElement(s)
		if !p.punct(",") {
			break
		}
	}
	p.expect(")")
	if p.word("WITH") {
		s.KeyBloom = p.settings()
	}
	return s
}

func (p *parser) tableElement(s *CreateTable) {
	switch {
	case p.isWords("PRIMARY", "KEY"):
		if s.Key != nil {
			p.fail(p.peek().pos, "a second PRIMARY KEY")
		}
		p.at += 2
		s.Key = p.names("the name of a column")
	case p.isWords("INDEX") && p.peekAt(2).word("GLOBAL"), p.isWords("INDEX") && p.peekAt(2).word("LOCAL"):
		s.Indexes = append(s.Indexes, p.index())
	default:
		s.Columns = append(s.Columns, p.column())
	}
}

func (p *parser) column() ColumnDef {
	c := ColumnDef{Name: p.name("the name of a column"), Type: p.typ()}
	if c.NotNull = p.word("NOT", "NULL"); !c.NotNull {
		p.word("NULL")
	}
	return c
}

func (p *parser) index() IndexDef {
	p.at++ // INDEX
	d := IndexDef{Name: p.name("the name of an index")}
	p.expectWord("GLOBAL")
	if !p.word("SYNC") {
		d.Async = p.word("ASYNC")
	}
	p.expectWord("ON")
	d.Columns = p.names("the name of a column")
	if p.word("COVER") {
		d.Cover = p.names("the name of a column")
	}
	return d
}

// brackets passes a balanced ( ... ) of settings that have no effect here.
func (p *parser) brackets() {
	p.expect("(")
	for depth := 1; depth > 0; {
		switch t := p.next(); {
		case t.kind == tEOF:
			p.unexpected("')'")
		case t.punct("("):
			depth++
		case t.punct(")"):
			depth--
		}
	}
}

// settings passes a balanced ( ... ) of settings of a table. KEY_BLOOM_FILTER is
// kept, to be described; the others have no effect here.
func (p *parser) settings() (keyBloom *bool) {
	begin := p.at
	p.brackets()
	end := p.at
	for p.at = begin; p.at < end; p.at++ {
		if !p.isWords("KEY_BLOOM_FILTER") || !p.peekAt(1).punct("=") {
			continue
		}
		on := p.peekAt(2).word("ENABLED")
		if !on && !p.peekAt(2).word("DISABLED") {
			p.at += 2
			p.unexpected("'ENABLED' or 'DISABLED'")
		}
		keyBloom = &on
	}
	return keyBloom
}

func (p *parser) dropTable() *DropTable {
	s := &DropTable{Pos: p.next().pos}
	p.expectWord("TABLE")
	s.IfExists = p.word("IF", "EXISTS")
	s.Table = p.table()
	return s
}

func (p *parser) alterTable() *AlterTable {
	s := &AlterTable{Pos: p.next().pos}
	p.expectWord("TABLE")
	s.Table = p.table()
	for {
		switch {
		case p.isWords("ADD", "INDEX"), p.isWords("ADD", "CHANGEFEED"), p.isWords("ADD", "FAMILY"):
			p.fail(p.peek().pos,
				"ALTER TABLE with %s %s is outside of the subset of YQL that the development cluster knows",
				p.peek().text, p.peekAt(1).text)
		case p.word("ADD"):
			p.word("COLUMN")
			c := p.column()
			if c.NotNull {
				p.fail(c.Name.Pos, "an added column cannot be NOT NULL")
			}
			s.Add = append(s.Add, c)
		case p.word("SET") && p.peek().punct("("):
			s.KeyBloom = p.settings()
		default:
			p.unexpected("'ADD COLUMN' or 'SET'")
		}
		if !p.punct(",") {
			return s
		}
	}
}
