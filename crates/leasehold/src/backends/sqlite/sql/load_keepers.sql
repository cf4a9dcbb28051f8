SELECT keeper, until_us FROM keepers;
