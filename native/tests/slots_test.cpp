// Publishing kernels while calls run, and many callers at once.
#include <thread>

#include "check.hpp"
#include "harness.hpp"

namespace tierup::test {
namespace {

template <int64_t number>
int32_t write_number(void* const* buffers, const int64_t*, void*, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) static_cast<int64_t*>(buffers[0])[i] = number;
  return 0;
}

// Writes slot 0's number over 64 elements and slot 1's into 64 others.
Program two_slots() {
  const FunctionText text{2,
                          1,
                          {},
                          {0, 1},
                          {{0, 0, 64, 0, 0}},
                          {{0, 0, 1},
                           {1, 0, 7, 0, -1, 1, 0},
                           {1, 1, 7, 0, -1, 1, 0},
                           {4, 0, 1, 0, 0, -1, 0, 0},
                           {4, 1, 1, 1, 0, -1, 0, 0}}};
  return build_program({text}, 0, {}, 2);
}

TEST(a_call_sees_one_table) {
  const Program program = two_slots();
  Slots slots(2);
  CallStates states;
  std::atomic<int> loaded{0};
  const auto publish = [&](KernelFn kernel) {
    ++loaded;
    const std::shared_ptr<void> code(&loaded, [](void* count) { --*static_cast<std::atomic<int>*>(count); });
    const std::pair<size_t, Slot> changes[] = {{0, {kernel, code}}, {1, {kernel, code}}};
    slots.publish(changes);
  };
  publish(write_number<1>);
  std::atomic<bool> stop{false};
  std::atomic<int> torn{0}, calls{0};
  std::vector<std::thread> callers;
  for (int t = 0; t < 3; ++t) {
    callers.emplace_back([&] {
      while (!stop) {
        const auto table = slots.snapshot();
        FakeHost host;
        std::unique_ptr<CallState> state = states.take();
        std::vector<Value> outs(2);
        run({program, *table, pool(), host, *state}, {}, outs);
        states.give_back(std::move(state));
        const std::vector<int64_t> first = items<int64_t>(outs[0]), second = items<int64_t>(outs[1]);
        const int64_t number = first[0];
        torn += first != std::vector<int64_t>(64, number) || second != first || (number != 1 && number != 2);
        ++calls;
      }
    });
  }
  for (int i = 0; i < 300 || calls < 50; ++i) publish(i % 2 == 0 ? write_number<2> : write_number<1>);
  stop = true;
  for (std::thread& caller : callers) caller.join();
  CHECK_EQUAL(torn.load(), 0);
  CHECK_EQUAL(loaded.load(), 1);  // only the code of the table that is live is still loaded
}

TEST(publishing_changes_only_what_is_named) {
  Slots slots(2);
  const auto before = slots.snapshot();
  const std::pair<size_t, Slot> change[] = {{1, {write_number<1>, nullptr}}};
  slots.publish(change);
  CHECK((*before)[1].kernel == nullptr);
  CHECK((*slots.snapshot())[0].kernel == nullptr);
  CHECK((*slots.snapshot())[1].kernel == write_number<1>);
}

// Slot 0 over as many elements as the input has; the size is the one that the step passes.
Program sized() {
  const FunctionText text{2, 2, {0}, {1}, {{13, 0, 0, 0, 0}, {0, 1, 1, 0, 0}}, {{0, 0, 2},
                                                                                {1, 1, 7, 0, -1, 1, 0},
                                                                                {4, 0, 1, 1, 1, 0, -1, 0, 1}}};
  return build_program({text}, 0, {}, 1);
}

std::vector<int64_t> answer(const Program& program, const SlotTable& table, int64_t count, double miss_share = 0) {
  static CallStates states;
  FakeHost host;
  std::unique_ptr<CallState> state = states.take();
  std::vector<Value> ins, outs(1);
  ins.push_back(int64s({count}, std::vector<int64_t>(static_cast<size_t>(count))));
  run({program, table, pool(), host, *state, nullptr, nullptr, miss_share}, ins, outs);
  states.give_back(std::move(state));
  return items<int64_t>(outs[0]);
}

Variant variant(std::vector<int64_t> key, KernelFn kernel, int64_t range, int64_t needs = 0) {
  key.push_back(needs);
  return {std::move(key), kernel, nullptr, range};
}

TEST(a_variant_answers_where_its_key_fits) {
  const Program program = sized();
  SlotTable table(1);
  table[0].kernel = write_number<1>;
  table[0].add(variant({3, 3}, write_number<2>, 3));
  table[0].add(variant({4, 4}, write_number<3>, 4));
  CHECK_EQUAL(answer(program, table, 3)[2], 2);
  CHECK_EQUAL(answer(program, table, 4)[3], 3);
  CHECK_EQUAL(answer(program, table, 5)[4], 1);
  CHECK_EQUAL(table[0].variants[0].uses->load(), uint64_t{1});
  CHECK_EQUAL(answer(program, table, 3, 1.0)[2], 1);  // passed over
  CHECK_EQUAL(table[0].variants[0].uses->load(), uint64_t{1});
}

TEST(range_and_grain_are_the_variants) {
  const Program program = sized();
  SlotTable table(1);
  table[0].kernel = write_number<1>;
  const KernelFn write_range = [](void* const* buffers, const int64_t*, void*, int64_t begin, int64_t end) {
    static_cast<int64_t*>(buffers[0])[0] = begin;
    static_cast<int64_t*>(buffers[0])[1] = end;
    return 0;
  };
  table[0].add({{3, 3, 0}, write_range, nullptr, 7, 7});
  const std::vector<int64_t> written = answer(program, table, 3);
  CHECK_EQUAL(written[0], 0);
  CHECK_EQUAL(written[1], 7);
}

TEST(a_variant_with_facts_goes_before_one_without) {
  Slot slot;
  slot.add(variant({3, 3}, write_number<1>, 3));
  slot.add(variant({4, 4}, write_number<2>, 4));
  slot.add(variant({3, 3}, write_number<3>, 3, 2));
  slot.add(variant({3, 3}, write_number<4>, 3, 6));
  CHECK_EQUAL(slot.asks, 6);
  const int64_t three[] = {3, 3}, four[] = {4, 4};
  for (size_t first = 0; first < 5; ++first) {  // wherever it is looked for first
    size_t hint = first;
    CHECK(slot.find(three, 0, hint)->kernel == write_number<1>);
    hint = first;
    CHECK(slot.find(three, 4, hint)->kernel == write_number<1>);
    hint = first;
    CHECK(slot.find(three, 3, hint)->kernel == write_number<3>);
    hint = first;
    CHECK(slot.find(four, 7, hint)->kernel == write_number<2>);
  }
  size_t hint = 0;
  CHECK(slot.find(three, 7, hint)->kernel == write_number<4>);
  CHECK(slot.remove(std::vector<int64_t>{3, 3, 6}));
  CHECK_EQUAL(slot.asks, 2);
  CHECK(slot.find(three, 7, hint)->kernel == write_number<3>);
}

TEST(what_counts_rounds_is_no_part_of_a_key) {
  Slot slot;
  slot.first = 2;
  slot.add(variant({5, 8}, write_number<1>, 8));
  size_t hint = 3;  // beyond the table: of another slot
  const int64_t round[] = {0, 1, 5, 8}, next[] = {1, 2, 5, 8}, other[] = {0, 1, 6, 8};
  CHECK(slot.find(round, 0, hint) == &slot.variants[0]);
  CHECK(slot.find(next, 0, hint) == &slot.variants[0]);
  CHECK(slot.find(other, 0, hint) == nullptr);
}

TEST(a_full_table_loses_what_was_used_least) {
  Slot slot;
  for (int64_t n = 0; n < static_cast<int64_t>(kMostVariants); ++n) {
    CHECK(slot.add(variant({n, n}, write_number<1>, n)).empty());
    if (n != 5 && n != 9) slot.variants.back().count();
  }
  const std::vector<Variant> gone = slot.add(variant({100, 100}, write_number<1>, 1));
  CHECK_EQUAL(gone.size(), size_t{1});
  CHECK_EQUAL(gone[0].key[0], 5);  // the older one of two
  CHECK_EQUAL(slot.variants.size(), kMostVariants);
  size_t hint = 0;
  const int64_t lost[] = {5, 5}, kept[] = {9, 9}, fresh[] = {100, 100};
  CHECK(slot.find(lost, 0, hint) == nullptr);
  CHECK(slot.find(kept, 0, hint) != nullptr);
  CHECK(slot.find(fresh, 0, hint) != nullptr);
  CHECK_EQUAL(hint, kMostVariants - 1);  // the last one that came
}

TEST(a_variant_replaces_one_with_its_key) {
  Slot slot;
  slot.add(variant({1, 1}, write_number<1>, 1));
  const std::vector<Variant> gone = slot.add(variant({1, 1}, write_number<2>, 1));
  CHECK_EQUAL(gone.size(), size_t{1});
  CHECK_EQUAL(slot.variants.size(), size_t{1});
  CHECK(slot.variants[0].kernel == write_number<2>);
}

TEST(a_variant_is_taken_out_by_its_key) {
  Slot slot;
  for (int64_t i = 0; i < 3; ++i) {
    Variant variant;
    variant.key = {i, 2 * i, 0};
    slot.add(std::move(variant));
  }
  CHECK(!slot.remove(std::vector<int64_t>{1, 1, 0}));
  CHECK(slot.remove(std::vector<int64_t>{1, 2, 0}));
  size_t hint = 0;
  CHECK(slot.find(std::vector<int64_t>{1, 2}, 0, hint) == nullptr);
  const Variant* const left = slot.find(std::vector<int64_t>{2, 4}, 0, hint);
  CHECK(left != nullptr && left->key == (std::vector<int64_t>{2, 4, 0}) && hint == 1);
}

TEST(variants_come_and_go_under_calls) {
  const Program program = sized();
  Slots slots(1);
  const std::pair<size_t, Slot> opened[] = {{0, {write_number<1>, nullptr}}};
  slots.publish(opened);
  std::atomic<int> loaded{0}, wrong{0}, calls{0};
  std::atomic<bool> stop{false};
  std::vector<std::thread> callers;
  for (int t = 0; t < 3; ++t) {
    callers.emplace_back([&] {
      while (!stop) {
        const auto table = slots.snapshot();
        const int64_t wanted = (*table)[0].variants.empty() ? 1 : 2;
        wrong += answer(program, *table, 3) != std::vector<int64_t>(3, wanted);
        ++calls;
      }
    });
  }
  for (int i = 0; i < 300 || calls < 50; ++i) {
    ++loaded;
    const std::shared_ptr<void> code(&loaded, [](void* count) { --*static_cast<std::atomic<int>*>(count); });
    slots.update([&](SlotTable& table) {
      Variant fresh = variant({3, 3}, write_number<2>, 3);
      fresh.code = code;
      table[0].add(std::move(fresh));
    });
    if (i % 3 == 0) slots.update([](SlotTable& table) { table[0].exchange({}); });
  }
  stop = true;
  for (std::thread& caller : callers) caller.join();
  CHECK_EQUAL(wrong.load(), 0);
  slots.update([](SlotTable& table) { table[0].exchange({}); });
  CHECK_EQUAL(loaded.load(), 0);  // nobody uses it any more
}

TEST(call_states_are_reused) {
  CallStates states;
  std::unique_ptr<CallState> first = states.take();
  const CallState* address = first.get();
  states.give_back(std::move(first));
  CHECK(states.take().get() == address);
}

}  // namespace
}  // namespace tierup::test
