package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

func TestNoticesAreThoseOfTheBinary(t *testing.T) {
	parts, err := binary("../../..")
	if err != nil {
		t.Fatal(err)
	}
	if len(parts) < 30 {
		t.Fatalf("%d parts; want Go, uPlot and the modules of cmd/sidecar", len(parts))
	}
	if err := check(parts); err != nil {
		t.Error(err)
	}
	got, err := os.ReadFile("../../../THIRD_PARTY_NOTICES")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, render(parts)) {
		t.Error("THIRD_PARTY_NOTICES is out of date; run make gen and commit it")
	}
	for _, want := range []string{"\nuPlot ", "\nGo runtime", "\ngithub.com/ydb-platform/ydb-go-genproto v",
		"Copyright 2019 YANDEX LLC", "Mozilla Public License"} {
		if !strings.Contains(string(got), want) {
			t.Errorf("THIRD_PARTY_NOTICES lacks %q", want)
		}
	}
}

// The chart is a package of its own.
func TestLicence(t *testing.T) {
	text, err := os.ReadFile("../../../LICENSE")
	if err != nil {
		t.Fatal(err)
	}
	if err := check([]part{{name: "ydb-sidecar", files: []file{{"LICENSE", string(text)}}}}); err != nil ||
		!strings.Contains(string(text), "Apache License") {
		t.Errorf("LICENSE: %v; want the Apache License, version 2.0", err)
	}
	inside, err := os.ReadFile("../../helm/ydb-sidecar/LICENSE")
	if err != nil || !bytes.Equal(inside, text) {
		t.Errorf("the chart's LICENSE is another one (%v): cp LICENSE deploy/helm/ydb-sidecar/", err)
	}
}

func TestCheck(t *testing.T) {
	mit, err := os.ReadFile("../../../internal/admin/page/uplot/LICENSE")
	if err != nil {
		t.Fatal(err)
	}
	gpl := "This program is free software: you can redistribute it and/or modify it under the terms of the GNU " +
		"General Public License as published by the Free Software Foundation, either version 3 of the License, or " +
		"(at your option) any later version."
	for _, tc := range []struct {
		name  string
		files []file
		want  string // "": allowed
	}{
		{"allowed", []file{{"LICENSE", string(mit)}}, ""},
		{"allowed_with_a_notice", []file{{"NOTICE", "Copyright Ann"}, {"LICENSE.md", string(mit)}}, ""},
		{"none", nil, "x has no licence"},
		{"notice_alone", []file{{"NOTICE", "Copyright Ann"}}, "x has no licence"},
		{"not_known", []file{{"LICENSE", "Do what Ann says."}}, "0 % a known licence"},
		{"not_allowed", []file{{"LICENSE", gpl}}, "LICENSE is GPL-3.0"},
		{"one_of_two", []file{{"LICENSE", string(mit)}, {"COPYING", gpl}}, "COPYING is GPL-3.0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := check([]part{{name: "x", files: tc.files}})
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("error %v; want %q", err, tc.want)
			}
		})
	}
}
