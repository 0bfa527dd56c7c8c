// Which calls are watched, what is kept of them, and that nobody waits for it.
#include "watching.hpp"

#include <atomic>
#include <thread>

#include "check.hpp"
#include "fake_perf.hpp"
#include "harness.hpp"

namespace tierup::test {
namespace {

WatchedCall call_of(uint64_t taken, uint64_t overhead, std::vector<Value> inputs = {}) {
  WatchedCall call(1, inputs, nullptr);
  call.end();
  call.taken = taken;
  call.overhead = overhead;
  return call;
}

// How many calls pass until one is watched, that one included; `most` if none is.
uint64_t calls_until_due(Watching& watching, uint64_t most) {
  for (uint64_t calls = 1; calls < most; ++calls) {
    if (watching.due()) return calls;
  }
  return most;
}

TEST(nothing_is_watched_before_it_is_turned_on) {
  Watching watching;
  CHECK(calls_until_due(watching, 1000) == 1000);
  watching.set_on(true);
  CHECK(calls_until_due(watching, 1000) == 2);
  CHECK(!watching.due());  // one is being watched
}

TEST(what_costs_more_is_watched_more_seldom) {
  Watching watching;
  watching.set_on(true);
  watching.set_analysis_ns(0);
  CHECK(watching.due() || watching.due());
  // Ticks by the thousand million, beside which those that the test itself takes are nothing.
  watching.keep(call_of(1'000'000'000'000, 1'000'000'000));  // a thousandth: every call could be watched
  CHECK(watching.gap() <= 3);
  CHECK(calls_until_due(watching, 1000) <= 3);
  watching.keep(call_of(1'000'000'000, 100'000'000'000));  // a hundred times the call itself
  const auto least = static_cast<uint64_t>(100 / Watching::kShare);
  CHECK(watching.gap() >= least && watching.gap() <= 2 * least);
  const uint64_t waited = calls_until_due(watching, 10 * least);
  CHECK(waited >= least && waited <= 2 * least);
}

TEST(the_next_calls_can_be_watched_one_by_one) {
  Watching watching;
  watching.watch_closely(3);
  CHECK(calls_until_due(watching, 100) == 100);  // it is off
  watching.set_on(true);
  CHECK(calls_until_due(watching, 100) < 100);
  watching.keep(call_of(1'000'000'000, 100'000'000'000));  // the next one would be far away
  watching.watch_closely(3);
  for (int i = 0; i < 3; ++i) {
    CHECK(watching.due());
    watching.keep(call_of(1'000'000'000, 100'000'000'000));
  }
  CHECK(calls_until_due(watching, 1000) == 1000);
}

TEST(looking_into_it_counts) {
  Watching watching;
  watching.set_on(true);
  CHECK(watching.due() || watching.due());
  watching.set_analysis_ns(1e6);
  const auto call = static_cast<uint64_t>(1e4 / ns_per_tick());  // of 10 µs
  watching.keep(call_of(call, 0));
  CHECK(watching.gap() >= static_cast<uint64_t>(99 / Watching::kShare));
}

TEST(turned_off_while_a_call_is_watched_it_stays_off) {
  Watching watching;
  watching.set_on(true);
  CHECK(watching.due() || watching.due());
  watching.set_on(false);
  watching.keep(call_of(1000, 10));
  CHECK(calls_until_due(watching, 100'000) == 100'000);
}

TEST(a_call_that_fails_is_not_the_last_that_is_watched) {
  Watching watching;
  watching.set_on(true);
  CHECK(watching.due() || watching.due());
  watching.give_up();
  CHECK(calls_until_due(watching, 100) < 100);
}

TEST(the_last_calls_are_taken_once) {
  Watching watching;
  for (uint64_t i = 0; i < Watching::kEnough - 1; ++i) watching.keep(call_of(100 + i, 1));
  CHECK(!watching.ask());
  for (uint64_t i = Watching::kEnough - 1; i < Watching::kKept + 3; ++i) watching.keep(call_of(100 + i, 1));
  CHECK(watching.ask() && !watching.ask());
  CHECK(watching.dropped() == 3);
  const std::vector<WatchedCall> taken = watching.take();
  CHECK(taken.size() == Watching::kKept);
  CHECK(taken.front().taken == 103 && taken.back().taken == 102 + Watching::kKept);
  CHECK(watching.take().empty());
}

TEST(whoever_was_asked_and_does_not_come_is_asked_again) {
  Watching watching;  // in a forked child, the thread that was asked is gone
  int asked = 0;
  for (size_t i = 0; i < 3 * Watching::kKept; ++i) {
    watching.keep(call_of(100, 1));
    asked += watching.ask() + watching.ask();
  }
  CHECK(asked == 3);
}

TEST(inputs_are_compared_with_the_last_ones) {
  Watching watching;
  for (const float number : {1.0f, 1.0f, 2.0f}) watching.keep(call_of(1, 1, {floats({1}, {number}), Value()}));
  const std::vector<WatchedCall> taken = watching.take();
  CHECK(!taken[0].inputs[0].same && taken[1].inputs[0].same && !taken[2].inputs[0].same);
  CHECK(taken[1].inputs[0].tensor && !taken[1].inputs[1].tensor && !taken[1].inputs[1].same);
}

int32_t count_to_a_thousand(void* const*, const int64_t*, void*, int64_t, int64_t) {
  for (int i = 0; i < 1000; ++i) __asm__ volatile("" ::: "memory");
  return 0;
}

// One kernel step, twice, over a range of one.
Program twice(size_t slots) {
  FunctionText text;
  text.n_dims = 1;
  text.dim_code = {{0, 0, 1, 0, 0}};
  const auto slot = static_cast<int64_t>(slots) - 1;
  text.steps = {{0, 0, 1}, {4, slot, 0, 0, -1, 0, 0}, {4, slot, 0, 0, -1, 0, 0}};
  return build_program({text}, 0, {}, static_cast<int64_t>(slots));
}

void run_watched(const Program& program, WatchedCall& watched) {
  SlotTable slots(static_cast<size_t>(program.slots));
  for (Slot& slot : slots) slot.kernel = count_to_a_thousand;
  CallState state;
  FakeHost host;
  tierup::run({program, slots, pool(), host, state, nullptr, &watched}, {}, {});
  watched.end();
}

TEST(kernels_are_timed_by_slot) {
  WatchedCall watched(3, {}, nullptr);
  run_watched(twice(3), watched);
  CHECK(watched.regions.size() == 3);
  CHECK(watched.regions[0].runs == 0 && watched.regions[2].runs == 2);
  CHECK(watched.regions[2].ticks > 0 && watched.regions[2].ticks <= watched.taken);
  CHECK(watched.regions[2].counted == 0 && watched.counters == 0);
  CHECK(watched.overhead > 0);
}

TEST(slots_beyond_the_limit_are_left_out) {
  WatchedCall watched(WatchedCall::kMaxRegions + 1, {}, nullptr);
  run_watched(twice(WatchedCall::kMaxRegions + 1), watched);
  CHECK(watched.regions.size() == WatchedCall::kMaxRegions);
}

TEST(counters_are_read_around_kernels) {
  fake = {};
  {
    RegionCounters counters(kFake);
    ThreadCounters own(counters);
    CHECK(!own.start());  // nobody has tried them yet
    counters.prepare();
    CHECK(counters.usable().size() == kRegionCounters);
    WatchedCall watched(1, {}, &own);
    run_watched(twice(1), watched);
    CHECK(watched.counters == kRegionCounters);
    CHECK(watched.regions[0].counted == 2);
    CHECK(watched.regions[0].counts[0] == 200 && watched.regions[0].counts[3] == 800);  // two reads apart, twice
    CHECK(fake.requests.count(PERF_EVENT_IOC_DISABLE) == 1);
  }
  expect_clean();
}

TEST(without_counters_there_are_times_all_the_same) {
  fake = {};
  fake.open_error = EACCES;
  RegionCounters counters(kFake);
  counters.prepare();
  CHECK(counters.usable().empty());
  ThreadCounters own(counters);
  WatchedCall watched(1, {}, &own);
  run_watched(twice(1), watched);
  CHECK(watched.counters == 0 && watched.regions[0].counted == 0 && watched.regions[0].runs == 2);
  expect_clean();
}

TEST(a_counter_that_fails_later_costs_its_counts_only) {
  fake = {};
  {
    RegionCounters counters(kFake);
    counters.prepare();
    ThreadCounters own(counters);
    WatchedCall watched(1, {}, &own);
    fake.read_error = EIO;
    run_watched(twice(1), watched);
    CHECK(watched.regions[0].runs == 2 && watched.regions[0].counted == 0);
  }
  expect_clean();
}

TEST(many_threads_watch_and_one_takes) {
  Watching watching;
  watching.set_on(true);
  std::atomic<bool> over{false};
  std::atomic<uint64_t> kept{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&] {
      for (int calls = 0; calls < 2000; ++calls) {
        if (!watching.due()) continue;
        watching.keep(call_of(1'000'000'000, 1));
        kept.fetch_add(1);
      }
    });
  }
  uint64_t taken = 0;
  std::thread taker([&] {
    while (!over.load()) {
      watching.ask();
      taken += watching.take().size();
    }
  });
  for (std::thread& caller : callers) caller.join();
  over.store(true);
  taker.join();
  taken += watching.take().size();
  CHECK(kept.load() > 0);
  CHECK(taken + watching.dropped() == kept.load());
}

}  // namespace
}  // namespace tierup::test
