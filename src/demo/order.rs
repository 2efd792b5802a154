//! Orders in memory, the same on every shard and in every run, and the page that shows one.

use askama::Template;
use std::fmt;

/// Orders there are; their ids run from 1 to this.
const ORDERS: u32 = 100;

/// Some need escaping, in text and in attributes.
const CUSTOMERS: [&str; 10] = [
    "Ada Lovelace",
    "Smith & Sons",
    "<b>Bold</b> Ltd.",
    "Miles O'Brien",
    "\"Quoted\" GmbH",
    "Jürgen Müßig",
    "</td><script>alert(1)</script>",
    "山田 太郎",
    "R&D <lab@example.org>",
    "Zoë Ångström",
];

/// Names and prices in cents.
const GOODS: [(&str, u32); 7] = [
    ("Ring, io_uring, size 8", 12_800),
    ("Pin for executors", 95),
    ("Nuts & bolts, 1 kg", 1_249),
    ("Cable < 1 m", 399),
    ("Shard of glass", 2_050),
    ("Buffer, provided", 1_600),
    ("Timer wheel", 7_777),
];

/// What a customer ordered.
#[derive(Debug)]
pub(super) struct Order {
    id: u32,
    customer: &'static str,
    items: Vec<Item>,
}

#[derive(Debug)]
struct Item {
    name: &'static str,
    quantity: u32,
    price: Cents,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Cents(u32);

impl fmt::Display for Cents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:02}", self.0 / 100, self.0 % 100)
    }
}

impl Item {
    fn total(&self) -> Cents {
        Cents(self.quantity * self.price.0)
    }
}

impl Order {
    fn new(id: u32) -> Self {
        let pick = |n: u32, of: usize| n as usize % of;
        let items = (0..1 + id % 5).map(|line| {
            let (name, price) = GOODS[pick(id * 3 + line * 2, GOODS.len())];
            Item { name, quantity: 1 + (id + line) % 4, price: Cents(price) }
        });
        Self { id, customer: CUSTOMERS[pick(id, CUSTOMERS.len())], items: items.collect() }
    }

    fn total(&self) -> Cents {
        Cents(self.items.iter().map(|item| item.total().0).sum())
    }

    /// The page that shows it.
    pub(super) fn page(&self) -> String {
        OrderPage { order: self }.render().expect("writing into a String does not fail")
    }
}

#[derive(Template)]
#[template(path = "order.html")]
struct OrderPage<'a> {
    order: &'a Order,
}

/// The orders of one shard.
#[derive(Debug)]
pub(super) struct Orders(Vec<Order>);

impl Orders {
    pub(super) fn new() -> Self {
        Self((1..=ORDERS).map(Order::new).collect())
    }

    pub(super) fn find(&self, id: u32) -> Option<&Order> {
        self.0.get(id.checked_sub(1)? as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn find_knows_its_ids_and_no_others() {
        let orders = Orders::new();
        for id in 1..=ORDERS {
            assert_eq!(orders.find(id).map(|order| order.id), Some(id));
        }
        for id in [0, ORDERS + 1, u32::MAX] {
            assert!(orders.find(id).is_none(), "{id}");
        }
    }

    #[test]
    fn page_escapes_what_customers_call_themselves() {
        let orders = Orders::new();
        let page = |id| orders.find(id).expect("an order").page();
        assert!(page(1).contains("Smith &#38; Sons"), "{}", page(1));
        assert!(page(6).contains("&#60;/td&#62;&#60;script&#62;alert(1)&#60;/script&#62;"), "{}", page(6));
        assert!(page(7).contains("山田 太郎"));
        for id in 1..=ORDERS {
            assert!(!page(id).contains("<script") && !page(id).contains("<b>"), "{id}");
        }
    }

    #[test]
    fn page_adds_up() {
        let order = Order::new(1);
        assert_eq!(order.items.iter().map(|item| item.total().0).sum::<u32>(), order.total().0);
        assert!(order.page().contains(&order.total().to_string()));
        assert_eq!(Cents(100_005).to_string(), "1000.05");
    }
}
