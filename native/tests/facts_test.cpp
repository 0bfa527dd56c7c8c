// Facts about inputs: what holds, what does not, and what is not looked at; and calls that are answered by them.
#include "facts.hpp"

#include <cstring>

#include "check.hpp"
#include "error.hpp"
#include "harness.hpp"

namespace tierup::test {
namespace {

template <typename Number>
std::vector<std::byte> bytes_of(Number number) {
  std::vector<std::byte> bytes(sizeof number);
  std::memcpy(bytes.data(), &number, sizeof number);
  return bytes;
}

int64_t looked_at(const Fact& fact, const Value& input) {
  const Value inputs[] = {input};
  return facts_that_hold({&fact, 1}, 1, inputs);
}

TEST(every_element_has_to_be_the_one) {
  const Fact ones{0, bytes_of(int64_t{1})};
  CHECK_EQUAL(looked_at(ones, int64s({4}, {1, 1, 1, 1})), 1);
  CHECK_EQUAL(looked_at(ones, int64s({4}, {1, 1, 1, 0})), 0);
  CHECK_EQUAL(looked_at(ones, int64s({4}, {0, 1, 1, 1})), 0);
  CHECK_EQUAL(looked_at(ones, int64s({4}, {2, 2, 2, 2})), 0);
  CHECK_EQUAL(looked_at(ones, int64s({1}, {1})), 1);
  CHECK_EQUAL(looked_at(ones, int64s({0}, {})), 1);
}

TEST(zeros_of_both_signs_are_two_numbers) {
  const Fact zeros{0, bytes_of(0.0f)};
  CHECK_EQUAL(looked_at(zeros, floats({2}, {0.0f, 0.0f})), 1);
  CHECK_EQUAL(looked_at(zeros, floats({2}, {0.0f, -0.0f})), 0);
}

TEST(what_cannot_be_looked_at_does_not_hold) {
  const Fact ones{0, bytes_of(int64_t{1})};
  CHECK_EQUAL(looked_at(ones, Value()), 0);             // left out
  CHECK_EQUAL(looked_at(ones, floats({1}, {1.0f})), 0);      // of another width
  const Value strided = int64s({4}, {1, 1, 1, 1});
  as_tensor(strided)->strides()[0] = 16;
  as_tensor(strided)->shape()[0] = 2;
  CHECK_EQUAL(looked_at(ones, strided), 0);
  const int64_t most = kFactBytes / 8;
  CHECK_EQUAL(looked_at(ones, int64s({most}, std::vector<int64_t>(static_cast<size_t>(most), 1))), 1);
  CHECK_EQUAL(looked_at(ones, int64s({most + 1}, std::vector<int64_t>(static_cast<size_t>(most + 1), 1))), 0);
}

TEST(only_what_is_asked_for_is_looked_at) {
  const Fact facts[] = {{0, bytes_of(int64_t{1})}, {1, bytes_of(int64_t{2})}};
  const Value inputs[] = {int64s({1}, {1}), int64s({1}, {2})};
  CHECK_EQUAL(facts_that_hold(facts, 3, inputs), 3);
  CHECK_EQUAL(facts_that_hold(facts, 2, inputs), 2);
  CHECK_EQUAL(facts_that_hold(facts, 0, inputs), 0);
}

template <int64_t number>
int32_t write_number(void* const* buffers, const int64_t*, void*, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) static_cast<int64_t*>(buffers[0])[i] = number;
  return 0;
}

// Slot 0 over as many elements as the input has.
FunctionText sized() {
  return {2, 2, {0}, {1}, {{13, 0, 0, 0, 0}, {0, 1, 1, 0, 0}},
          {{0, 0, 2}, {1, 1, 7, 0, -1, 1, 0}, {4, 0, 1, 1, 1, 0, -1, 0, 1}}};
}

TEST(a_call_takes_the_kernel_of_its_facts) {
  const Program program = build_program({sized()}, 0, {}, 1, {{0, bytes_of(int64_t{1})}});
  SlotTable table(1);
  table[0].kernel = write_number<1>;
  table[0].add({{3, 3, 1}, write_number<2>, nullptr, 3});
  table.note_asks();
  const auto answer = [&](std::vector<int64_t> given) {
    CallState state;
    FakeHost host;
    std::vector<Value> ins, outs(1);
    const auto count = static_cast<int64_t>(given.size());
    ins.push_back(int64s({count}, std::move(given)));
    run({program, table, pool(), host, state}, ins, outs);
    return items<int64_t>(outs[0])[0];
  };
  CHECK_EQUAL(answer({1, 1, 1}), 2);
  CHECK_EQUAL(answer({1, 1, 2}), 1);  // the fact does not hold: the open kernel answers the same call
  CHECK_EQUAL(answer({1, 1, 1}), 2);
  CHECK_EQUAL(answer({1, 1}), 1);     // other sizes
}

TEST(facts_are_checked_when_a_program_is_built) {
  const auto refused = [](std::vector<Fact> facts) {
    try {
      build_program({sized()}, 0, {}, 1, std::move(facts));
    } catch (const InvalidProgram&) {
      return true;
    }
    return false;
  };
  CHECK(refused({{1, bytes_of(int64_t{1})}}));
  CHECK(refused({{-1, bytes_of(int64_t{1})}}));
  CHECK(refused({{0, {}}}));
  CHECK(refused({{0, std::vector<std::byte>(3)}}));
  CHECK(refused(std::vector<Fact>(kMostFacts + 1, {0, bytes_of(int64_t{1})})));
  CHECK(!refused(std::vector<Fact>(kMostFacts, {0, bytes_of(int64_t{1})})));
}

}  // namespace
}  // namespace tierup::test
