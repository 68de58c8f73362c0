// Empty: lets the package declare functions without bodies, see pin.go.
