// SPDX-License-Identifier: Apache-2.0
#include "row_store.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

struct row_store {
    std::string name;
    std::vector<std::uint64_t> edges;
};

namespace {

constexpr std::size_t kNameMax = 64;
constexpr std::uint32_t kRanksMax = 65536;
constexpr std::uint64_t kRowsMax = std::uint64_t{1} << 47;

bool name_character(char c) {
    constexpr std::string_view others = "_.-";
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           others.find(c) != std::string_view::npos;
}

std::optional<std::string> checked_name(const char *text) {
    if (text == nullptr) {
        return std::nullopt;
    }
    const std::string_view name(text);
    if (name.empty() || name.size() > kNameMax || !std::all_of(name.begin(), name.end(), name_character)) {
        return std::nullopt;
    }
    return std::string(name);
}

}  // namespace

extern "C" row_store *row_store_open(const char *name, std::uint64_t rows, std::uint32_t tp) {
    if (tp == 0 || tp > kRanksMax || rows > kRowsMax) {
        return nullptr;
    }
    try {
        auto checked = checked_name(name);
        if (!checked) {
            return nullptr;
        }
        std::vector<std::uint64_t> edges(std::size_t{tp} + 1);
        std::uint64_t rank = 0;
        std::generate(edges.begin(), edges.end(), [&] { return rows * rank++ / tp; });
        return new row_store{std::move(*checked), std::move(edges)};
    } catch (const std::bad_alloc &) {
        return nullptr;
    }
}

extern "C" int row_store_range(const row_store *store, std::uint32_t rank, std::uint64_t *first,
                               std::uint64_t *last) {
    if (store == nullptr || first == nullptr || last == nullptr || rank >= store->edges.size() - 1) {
        return -1;
    }
    *first = store->edges[rank];
    *last = store->edges[std::size_t{rank} + 1];
    return 0;
}

extern "C" void row_store_close(row_store *store) { delete store; }
