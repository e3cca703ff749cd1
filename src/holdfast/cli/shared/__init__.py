"""What commands share: options, words, exit codes, times, and the lease ids that are kept between two of them."""
