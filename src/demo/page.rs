//! Pages whose length is a promise, so that figures compare with those others published for the same lengths.

use std::fmt::Write;
use std::sync::LazyLock;

/// Length of [`FAST`] in bytes.
const FAST_BYTES: usize = 16_294;
/// Numbers on each side of the times table.
const TABLE_SIDE: u32 = 25;

/// A plain page of 16,294 bytes.
pub(super) static FAST: LazyLock<String> = LazyLock::new(fast);

/// The times table without a date, 7,616 bytes.
pub(super) static TIMES_TABLE: LazyLock<String> = LazyLock::new(|| times_table(""));

/// The 25 × 25 times table as HTML, above it `date` if there is one.
pub(super) fn times_table(date: &str) -> String {
    let mut page = String::with_capacity(8 * 1024);
    page.push_str(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <title>dw-bench: the times table of the numbers from 1 to 25</title>\n",
    );
    if !date.is_empty() {
        writeln!(page, "<p>{date}</p>").expect("a String takes all");
    }
    page.push_str("<table>\n");
    for row in 1..=TABLE_SIDE {
        page.push_str("<tr>");
        for column in 1..=TABLE_SIDE {
            page.push_str("<td>");
            page.push_str(itoa::Buffer::new().format(row * column));
            page.push_str("</td>");
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</table>\n</html>\n");
    page
}

fn fast() -> String {
    const START: &str = "<!DOCTYPE html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>fast</title>\n";
    const LINE: &str =
        "<p>One executor is pinned to each core; nothing on the path of a request is shared between cores.</p>\n";
    const END: &str = "</html>\n";
    let mut page = String::with_capacity(FAST_BYTES);
    page.push_str(START);
    while page.len() + LINE.len() + END.len() <= FAST_BYTES {
        page.push_str(LINE);
    }
    // Whitespace between elements shows nowhere.
    let missing = FAST_BYTES - END.len() - page.len();
    page.extend(std::iter::repeat_n('\n', missing));
    page.push_str(END);
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_is_as_long_as_promised() {
        assert_eq!(FAST.len(), 16_294);
        assert!(FAST.starts_with("<!DOCTYPE html>\n") && FAST.ends_with("</html>\n"));
    }

    #[test]
    fn times_table_holds_every_product() {
        assert_eq!(TIMES_TABLE.len(), 7_616);
        assert_eq!(TIMES_TABLE.matches("<tr>").count(), 25);
        assert_eq!(TIMES_TABLE.matches("<td>").count(), 625);
        assert!(TIMES_TABLE.contains("<tr><td>1</td><td>2</td><td>3</td>"));
        assert!(TIMES_TABLE.contains("<td>600</td><td>625</td></tr>\n</table>\n</html>\n"));
    }

    #[test]
    fn times_table_with_a_date_differs_in_that_line_only() {
        assert_eq!(times_table("now").replace("<p>now</p>\n", ""), *TIMES_TABLE);
    }
}
