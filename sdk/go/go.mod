module example.invalid/leasehold/sdk/go

go 1.19
