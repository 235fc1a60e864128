// SPDX-License-Identifier: Apache-2.0
// Ranges of rows of a table that is split over tensor-parallel ranks. Plain C interface.
#ifndef MINI_ADAPTER_ROW_STORE_H
#define MINI_ADAPTER_ROW_STORE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct row_store row_store;

// A store of `rows` rows for `tp` ranks, named `name` ([A-Za-z0-9_.-], 1 to 64 characters).
// NULL on bad input: no name, tp of 0 or above 65536, more than 2^47 rows.
row_store *row_store_open(const char *name, uint64_t rows, uint32_t tp);

// Writes floor(rows * rank / tp) to *first and floor(rows * (rank + 1) / tp) to *last.
// 0 on success; -1 and nothing written when a pointer is NULL or rank is not below tp.
int row_store_range(const row_store *store, uint32_t rank, uint64_t *first, uint64_t *last);

// Frees the store; NULL is allowed.
void row_store_close(row_store *store);

#ifdef __cplusplus
}
#endif

#endif
