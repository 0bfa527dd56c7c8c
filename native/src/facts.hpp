// Facts: what variants may rely on beside sizes, looked at when a call begins.
#pragma once

#include <cstdint>
#include <span>

#include "program.hpp"

namespace tierup {

constexpr size_t kMostFacts = 32;           // of a program
constexpr int64_t kFactBytes = 64 << 10;  // of an input: looking through more would take a microsecond or two

// A bit for each fact that holds for these inputs, of those that are asked for. What is not dense, left out or too large
// is not looked at: then a fact does not hold.
int64_t facts_that_hold(std::span<const Fact> facts, int64_t asked, std::span<const Value> inputs);

}  // namespace tierup
