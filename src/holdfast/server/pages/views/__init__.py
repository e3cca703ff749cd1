"""What the rooms of the page show, as values: plain functions of the state, of records and of times. No HTML here."""
