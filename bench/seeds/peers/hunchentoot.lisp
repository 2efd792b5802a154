;;;; A Lisp web server in two modes: a thread for each connection (Hunchentoot's own, with its own limits of 100 threads
;;;; and 120 connections), or a pool of 8 workers, each with one connection at a time as long as that is open.
;;;;
;;;; Built:   sbcl --non-interactive --load hunchentoot.lisp    writes the program named by PROGRAM
;;;; Started: PROGRAM PORT threads|pool

(require :asdf)
(asdf:load-system :hunchentoot)
(defpackage :peer (:use :cl :hunchentoot))
(in-package :peer)

(defconstant +workers+ 8)

;;; The pool: connections wait in a queue until a worker has ended the one before.
(defclass pool (multi-threaded-taskmaster)
  ((queue :initform '() :accessor queue)
   (lock :initform (bt:make-lock) :reader lock)
   (filled :initform (bt:make-condition-variable) :reader filled)))

(defun next-socket (pool)
  (bt:with-lock-held ((lock pool))
    (loop until (queue pool) do (bt:condition-wait (filled pool) (lock pool)))
    (pop (queue pool))))

(defmethod execute-acceptor :before ((pool pool))
  (dotimes (number +workers+)
    (bt:make-thread
     (lambda ()
       (loop
         (let ((socket (next-socket pool)))
           (handler-case (process-connection (taskmaster-acceptor pool) socket)
             (error (problem) (format *error-output* "~a~%" problem))))))
     :name (format nil "worker-~d" number))))

(defmethod handle-incoming-connection ((pool pool) socket)
  (bt:with-lock-held ((lock pool))
    (setf (queue pool) (nconc (queue pool) (list socket)))
    (bt:condition-notify (filled pool))))

(defmethod shutdown ((pool pool)) pool)

;;; The demo of the two systems.
(define-easy-handler (yo :uri "/yo") (name)
  (setf (content-type*) "text/plain")
  (format nil "Hey~@[ ~a~]!" name))

(define-easy-handler (small :uri "/small") ()
  (setf (content-type*) "text/html")
  "OK")

(defparameter *orders*
  (let ((orders (make-hash-table)))
    (setf (gethash 1 orders) '("Ada Lovelace" ("Gear wheels" 40 125) ("Punched cards" 1000 2)))
    orders))

(define-easy-handler (view-order :uri "/view-order") ((order-id :parameter-type 'integer))
  (destructuring-bind (customer &rest lines) (gethash order-id *orders*)
    (with-output-to-string (page)
      (format page "<!DOCTYPE html><html><head><title>Order ~d</title></head><body><h1>Order ~d</h1><p>~a</p><table>"
              order-id order-id (escape-for-html customer))
      (loop for (what count price) in lines
            do (format page "<tr><td>~a</td><td>~d</td><td>~,2f</td></tr>"
                       (escape-for-html what) count (/ (* count price) 100)))
      (format page "</table></body></html>"))))

(defun main ()
  (destructuring-bind (port mode) (rest sb-ext:*posix-argv*)
    (start (make-instance 'easy-acceptor
                          :address "127.0.0.1" :port (parse-integer port)
                          :access-log-destination nil :message-log-destination nil
                          :taskmaster (make-instance (if (string= mode "pool") 'pool 'one-thread-per-connection-taskmaster))))
    (loop (sleep 3600))))

(sb-ext:save-lisp-and-die (sb-ext:posix-getenv "PROGRAM") :executable t :toplevel #'main :save-runtime-options t)
